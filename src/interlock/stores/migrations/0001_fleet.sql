-- The fleet, its runs and its journal. Narrow hot tables hold who is ready, held, idle, vacating and leased;
-- a row's existence is the state. Times and durations are microseconds.

CREATE TABLE workflow (
  digest TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  sealed TEXT NOT NULL,
  created_at BIGINT NOT NULL
);

CREATE TABLE task (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL CHECK (kind IN ('goal', 'workflow')),
  label TEXT NOT NULL,
  sealed TEXT NOT NULL,
  body_digest TEXT NOT NULL,
  workflow TEXT REFERENCES workflow (digest),
  driver_type TEXT,
  tags TEXT NOT NULL,
  pin TEXT,
  rank BIGINT NOT NULL,
  submitter TEXT NOT NULL,
  priority BIGINT NOT NULL,
  idempotency_key TEXT,
  max_attempts BIGINT NOT NULL,
  counted BIGINT NOT NULL DEFAULT 0,
  uncounted BIGINT NOT NULL DEFAULT 0,
  submitted_at BIGINT NOT NULL,
  cancel_requested_at BIGINT,
  ended_at BIGINT,
  end_status TEXT CHECK (end_status IN ('done', 'failed', 'cancelled')),
  end_reason TEXT,
  result TEXT,
  CHECK ((ended_at IS NULL) = (end_status IS NULL))
);
CREATE UNIQUE INDEX task_idempotency ON task (submitter, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE shape (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  wanted TEXT NOT NULL UNIQUE
);

CREATE TABLE ready (
  task TEXT PRIMARY KEY REFERENCES task (id),
  shape BIGINT NOT NULL,
  pin TEXT,
  rank BIGINT NOT NULL,
  seq BIGINT NOT NULL
);
CREATE INDEX ready_by_shape ON ready (shape, rank, seq) WHERE pin IS NULL;
CREATE INDEX ready_by_pin ON ready (pin, shape, rank, seq) WHERE pin IS NOT NULL;

CREATE TABLE held (
  task TEXT PRIMARY KEY REFERENCES task (id),
  until BIGINT NOT NULL,
  reason TEXT NOT NULL
);
CREATE INDEX held_by_time ON held (until);

CREATE TABLE depth (
  id BIGINT PRIMARY KEY CHECK (id = 1),
  queued BIGINT NOT NULL CHECK (queued >= 0)
);
INSERT INTO depth (id, queued) VALUES (1, 0);

CREATE TABLE host (
  id TEXT PRIMARY KEY,
  token_hash TEXT NOT NULL UNIQUE,
  boot_id TEXT,
  generation TEXT,
  last_beat_at BIGINT,
  registered_at BIGINT NOT NULL
);

CREATE TABLE device (
  id TEXT PRIMARY KEY,
  host TEXT NOT NULL REFERENCES host (id),
  serial TEXT NOT NULL,
  driver_type TEXT NOT NULL,
  tags TEXT NOT NULL,
  exclusive_tags TEXT NOT NULL,
  service TEXT NOT NULL DEFAULT 'in_service' CHECK (service IN ('in_service', 'draining', 'quarantined')),
  service_reason TEXT,
  fence BIGINT NOT NULL DEFAULT 0,
  losses BIGINT NOT NULL DEFAULT 0,
  reported BIGINT NOT NULL DEFAULT 1 CHECK (reported IN (0, 1)),
  registered_at BIGINT NOT NULL,
  UNIQUE (host, serial)
);

CREATE TABLE idle (
  device TEXT PRIMARY KEY REFERENCES device (id),
  since BIGINT NOT NULL
);

CREATE TABLE vacating (
  device TEXT PRIMARY KEY REFERENCES device (id),
  state TEXT NOT NULL CHECK (state IN ('cleaning', 'stop_unconfirmed')),
  since BIGINT NOT NULL,
  attempt TEXT NOT NULL
);

CREATE TABLE attempt (
  id TEXT PRIMARY KEY,
  lease TEXT NOT NULL UNIQUE,
  task TEXT NOT NULL REFERENCES task (id),
  number BIGINT NOT NULL,
  device TEXT NOT NULL REFERENCES device (id),
  host TEXT NOT NULL,
  serial TEXT NOT NULL,
  fence BIGINT NOT NULL,
  assigned_at BIGINT NOT NULL,
  claimed_at BIGINT,
  ended_at BIGINT,
  end_kind TEXT,
  end_reason TEXT,
  claim_id TEXT,
  report TEXT,
  late_report TEXT,
  UNIQUE (task, number)
);
CREATE INDEX attempt_by_claim ON attempt (claim_id) WHERE claim_id IS NOT NULL;

CREATE TABLE lease (
  id TEXT PRIMARY KEY,
  attempt TEXT NOT NULL UNIQUE REFERENCES attempt (id),
  task TEXT NOT NULL UNIQUE REFERENCES task (id),
  device TEXT NOT NULL UNIQUE REFERENCES device (id),
  host TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('assigned', 'claimed')),
  expires_at BIGINT NOT NULL
);
CREATE INDEX lease_by_host ON lease (host, state);

CREATE TABLE run (
  run_id TEXT PRIMARY KEY,
  task TEXT NOT NULL REFERENCES task (id),
  parent TEXT,
  ordinal BIGINT NOT NULL,
  sequence BIGINT NOT NULL,
  digest TEXT NOT NULL,
  previous TEXT NOT NULL,
  checkpoint TEXT NOT NULL,
  attempt TEXT NOT NULL,
  UNIQUE (task, ordinal)
);

CREATE TABLE journal (
  run_id TEXT NOT NULL,
  action_id TEXT NOT NULL,
  task TEXT NOT NULL REFERENCES task (id),
  attempt TEXT NOT NULL,
  host TEXT NOT NULL,
  serial TEXT NOT NULL,
  tool_id TEXT NOT NULL,
  arguments_digest TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('handed_over', 'withdrawn', 'settled')),
  handed_over_at BIGINT NOT NULL,
  outcome TEXT,
  evidence TEXT,
  settled_at BIGINT,
  PRIMARY KEY (run_id, action_id)
);
CREATE INDEX journal_by_task ON journal (task, handed_over_at);

CREATE TABLE output (
  task TEXT NOT NULL REFERENCES task (id),
  action_id TEXT NOT NULL,
  sealed TEXT NOT NULL,
  run_id TEXT NOT NULL,
  PRIMARY KEY (task, action_id)
);

CREATE TABLE audit (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  at BIGINT NOT NULL,
  what TEXT NOT NULL,
  device TEXT,
  attempt TEXT
);

CREATE TABLE upkeep (
  id BIGINT PRIMARY KEY CHECK (id = 1),
  clock_at BIGINT NOT NULL,
  swept_at BIGINT NOT NULL
);

CREATE VIEW task_status AS
SELECT
  task.id AS task,
  CASE
    WHEN task.end_status IS NOT NULL THEN task.end_status
    WHEN lease.state = 'claimed' THEN 'dispatched'
    WHEN lease.state = 'assigned' THEN 'assigned'
    ELSE 'queued'
  END AS status
FROM task LEFT JOIN lease ON lease.task = task.id;

CREATE VIEW device_occupancy AS
SELECT
  device.id AS device,
  CASE
    WHEN lease.state = 'claimed' THEN 'busy'
    WHEN lease.state = 'assigned' THEN 'reserved'
    WHEN vacating.state IS NOT NULL THEN vacating.state
    ELSE 'idle'
  END AS occupancy
FROM device
LEFT JOIN lease ON lease.device = device.id
LEFT JOIN vacating ON vacating.device = device.id;
