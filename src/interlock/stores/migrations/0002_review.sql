-- Doubt has an answer: a person's word on an effect, the task that continues the one that failed, and when the stop of
-- an attempt was confirmed.

ALTER TABLE attempt ADD COLUMN stopped_at BIGINT;

ALTER TABLE task ADD COLUMN predecessor TEXT REFERENCES task (id);
CREATE UNIQUE INDEX task_successor ON task (predecessor) WHERE predecessor IS NOT NULL;

ALTER TABLE journal ADD COLUMN answer TEXT CHECK (answer IN ('happened', 'did_not_happen', 'drop'));
ALTER TABLE journal ADD COLUMN answered_by TEXT;
ALTER TABLE journal ADD COLUMN answered_at BIGINT;
CREATE INDEX journal_in_doubt ON journal (handed_over_at)
WHERE answer IS NULL AND (state = 'handed_over' OR outcome = 'review_required');
