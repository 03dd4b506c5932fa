-- What PostgreSQL alone needs: the store's clock, a depth in sixteen rows, and tables that stay small under many writes.

ALTER TABLE upkeep ADD COLUMN ahead BIGINT NOT NULL DEFAULT 0;

CREATE FUNCTION interlock_machine() RETURNS BIGINT LANGUAGE sql STABLE AS $$
  SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000000) AS BIGINT)
$$;

INSERT INTO upkeep (id, clock_at, swept_at) VALUES (1, interlock_machine(), interlock_machine());

-- Not `now()`, which is when the transaction began; and never earlier than what the last sweep wrote.
CREATE FUNCTION interlock_now() RETURNS BIGINT LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT greatest(interlock_machine() + ahead, clock_at) FROM upkeep WHERE id = 1);
END
$$;

ALTER TABLE depth DROP CONSTRAINT depth_id_check, DROP CONSTRAINT depth_queued_check;
INSERT INTO depth (id, queued) SELECT slot, 0 FROM generate_series(2, 16) AS slot;
ALTER TABLE depth SET (fillfactor = 50);

ALTER TABLE lease SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE ready SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE held SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE idle SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE vacating SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
