-- A device that is gone for good can be forgotten: it is listed no more, and its record stays.

ALTER TABLE device ADD COLUMN forgotten BIGINT NOT NULL DEFAULT 0 CHECK (forgotten IN (0, 1));
