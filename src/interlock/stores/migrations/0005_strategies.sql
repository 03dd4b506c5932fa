-- What strategies rank by: who ranked the queue, the rank that was last granted, and each submitter's last rank.

CREATE TABLE strategy (
  id BIGINT PRIMARY KEY CHECK (id = 1),
  name TEXT NOT NULL,
  granted_rank BIGINT NOT NULL
);
INSERT INTO strategy (id, name, granted_rank) VALUES (1, 'fifo_match', 0);

CREATE TABLE share (
  submitter TEXT PRIMARY KEY,
  rank BIGINT NOT NULL
);
