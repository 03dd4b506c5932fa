-- How far the history has been looked through for what may be forgotten.

ALTER TABLE upkeep ADD COLUMN history_seq BIGINT NOT NULL DEFAULT 0;
