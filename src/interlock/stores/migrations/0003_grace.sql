-- An outage gives each lease one grace period, until its holder is heard of again: repeated outages keep nothing alive.

ALTER TABLE lease ADD COLUMN graced BIGINT NOT NULL DEFAULT 0 CHECK (graced IN (0, 1));
