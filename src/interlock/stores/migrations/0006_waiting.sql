-- From when on a task may run, how long it may wait each time it waits, and how long each device was held the last time.

ALTER TABLE task ADD COLUMN not_before BIGINT;
ALTER TABLE task ADD COLUMN queue_timeout BIGINT;

ALTER TABLE ready ADD COLUMN until BIGINT;
CREATE INDEX ready_by_deadline ON ready (until) WHERE until IS NOT NULL;

ALTER TABLE device ADD COLUMN granted_at BIGINT;
ALTER TABLE device ADD COLUMN took BIGINT;
