-- The saves of a run cost what has changed: the first one is kept whole, each later one as the difference, beside a
-- narrow head and the state of each action. An effect's entry knows by which nonce it was written.

CREATE TABLE run_save (
  run_id TEXT NOT NULL,
  sequence BIGINT NOT NULL,
  digest TEXT NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (run_id, sequence)
);

CREATE TABLE run_state (
  run_id TEXT NOT NULL,
  action_id TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('pending', 'running', 'committed', 'failed', 'review_required')),
  PRIMARY KEY (run_id, action_id)
);

ALTER TABLE run ADD COLUMN plan_digest TEXT;
ALTER TABLE run ADD COLUMN admitted_actions BIGINT;
ALTER TABLE run ADD COLUMN reserved_units BIGINT;
ALTER TABLE run ADD COLUMN elapsed_ns BIGINT;
ALTER TABLE run ADD COLUMN stop_reason TEXT;

-- (sqlite) A run in flight goes on from its last save, whose chain begins at the digest before it. What is damaged
-- stays so. No database of the other kind is as old as that.
INSERT INTO run_save (run_id, sequence, digest, body) SELECT run_id, sequence, digest, checkpoint FROM run;

-- (sqlite) The states of its actions.
INSERT INTO run_state (run_id, action_id, state)
SELECT run.run_id, json_extract(pair.value, '$[0]'), json_extract(pair.value, '$[1]')
FROM run, json_each(run.checkpoint, '$.states') AS pair WHERE json_valid(run.checkpoint);

-- (sqlite) Its plan and its charges.
UPDATE run SET
  plan_digest = json_extract(checkpoint, '$.plan_digest'),
  admitted_actions = json_extract(checkpoint, '$.admitted_actions'),
  reserved_units = json_extract(checkpoint, '$.reserved_units'),
  elapsed_ns = json_extract(checkpoint, '$.elapsed_ns'),
  stop_reason = json_extract(checkpoint, '$.stop_reason')
WHERE json_valid(checkpoint);

ALTER TABLE run RENAME COLUMN previous TO base;
ALTER TABLE run DROP COLUMN checkpoint;

ALTER TABLE journal ADD COLUMN nonce TEXT;
