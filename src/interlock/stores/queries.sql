-- Every statement that the stores run. A header line gives a name and a sentence; `(sqlite)` and `(postgres)` mark
-- the two forms of a statement that cannot be one text. `interlock_now()` is the store's clock in microseconds,
-- and `:presence` is there for every statement: how long a host counts as present after it was last heard of.

-- clock: What time it is by the store.
SELECT interlock_now() AS now;

-- upkeep: When the store last wrote and last swept.
SELECT clock_at, swept_at FROM upkeep WHERE id = 1;

-- upkeep_start: Note the first sweep of a new database.
INSERT INTO upkeep (id, clock_at, swept_at) VALUES (1, interlock_now(), interlock_now());

-- upkeep_tick (sqlite): Remember the time of a write, so that the clock never goes behind it.
UPDATE upkeep SET clock_at = interlock_now() WHERE id = 1;

-- upkeep_tick (postgres): The same at a sweep. Where the machine's clock was put back, go on from here, a twentieth slower.
UPDATE upkeep SET
  ahead = greatest(0, clock_at - interlock_machine(), ahead - (interlock_now() - clock_at) / 20),
  clock_at = interlock_now()
WHERE id = 1;

-- lock_schema (postgres): One program at a time migrates.
SELECT pg_advisory_xact_lock(7304, 0);

-- schema_there (postgres): Whether any program was here before.
SELECT to_regclass('interlock_schema') IS NOT NULL AS there;

-- make_schema (postgres): A place for the number of the schema.
CREATE TABLE interlock_schema (version BIGINT NOT NULL);

-- schema (postgres): The number of the schema.
SELECT coalesce(max(version), 0) AS version FROM interlock_schema;

-- keep_schema (postgres): Remember the number of the schema.
INSERT INTO interlock_schema (version) VALUES (:version);

-- resume_clock (postgres): The machine's clock was put back: go on from the time that was told last.
UPDATE upkeep SET ahead = greatest(ahead, :latest - interlock_machine()), clock_at = greatest(clock_at, :latest)
WHERE id = 1;

-- begin (postgres): What a transaction must know first: the time, the last sweep's, and its own number.
SELECT interlock_now() AS now, swept_at, CAST(pg_current_xact_id() AS TEXT) AS xact FROM upkeep WHERE id = 1;

-- xact_status (postgres): What became of a transaction whose commit was not answered.
SELECT pg_xact_status(CAST(:xact AS xid8)) AS status;

-- lock_upkeep (postgres): One sweep or outage at a time.
SELECT id FROM upkeep WHERE id = 1 FOR UPDATE;

-- upkeep_swept: Remember the time of a sweep.
UPDATE upkeep SET swept_at = interlock_now() WHERE id = 1;

-- history: The next tasks in the order of submission, with what says whether they may be forgotten.
SELECT task.seq, task.id, task.ended_at,
  CASE WHEN EXISTS (SELECT 1 FROM task AS successor WHERE successor.predecessor = task.id)
    OR EXISTS (
      SELECT 1 FROM journal WHERE journal.task = task.id AND journal.answer IS NULL
        AND (journal.state = 'handed_over' OR journal.outcome = 'review_required')
    )
    OR EXISTS (SELECT 1 FROM vacating JOIN attempt ON attempt.id = vacating.attempt WHERE attempt.task = task.id)
  THEN 1 ELSE 0 END AS needed
FROM task WHERE task.seq > (SELECT history_seq FROM upkeep WHERE id = 1) ORDER BY task.seq LIMIT :most;

-- history_looked: Remember how far the history was looked through.
UPDATE upkeep SET history_seq = :seq WHERE id = 1;

-- forget_saves: Forget the saves of a task's runs.
DELETE FROM run_save WHERE run_id IN (SELECT run_id FROM run WHERE task = :task);

-- forget_states: Forget the states of a task's runs.
DELETE FROM run_state WHERE run_id IN (SELECT run_id FROM run WHERE task = :task);

-- forget_runs: Forget a task's runs.
DELETE FROM run WHERE task = :task;

-- forget_journal: Forget a task's effects.
DELETE FROM journal WHERE task = :task;

-- forget_outputs: Forget what a task's actions gave.
DELETE FROM output WHERE task = :task;

-- forget_attempts: Forget a task's attempts.
DELETE FROM attempt WHERE task = :task;

-- forget_task: Forget a task.
DELETE FROM task WHERE id = :task;

-- outage_grace: Move each deadline that an outage may have eaten to one grace period from now, once until it is renewed.
UPDATE lease SET expires_at = interlock_now() + :grace, graced = 1
WHERE graced = 0 AND expires_at < interlock_now() + :grace;

-- define_workflow: Keep a definition under its digest.
INSERT INTO workflow (digest, name, sealed, created_at) VALUES (:digest, :name, :sealed, interlock_now())
ON CONFLICT (digest) DO NOTHING;

-- workflow: A definition by its digest.
SELECT digest, name, sealed FROM workflow WHERE digest = :digest;

-- task_by_key: The task that a submitter already made under an idempotency key.
SELECT id, body_digest FROM task WHERE submitter = :submitter AND idempotency_key = :key;

-- task: One task, with what its status follows from.
SELECT task.*, task_status.status, successor.id AS successor
FROM task JOIN task_status ON task_status.task = task.id
LEFT JOIN task AS successor ON successor.predecessor = task.id
WHERE task.id = :task;

-- insert_task: Keep a submitted task.
INSERT INTO task (
  id, kind, label, sealed, body_digest, workflow, driver_type, tags, pin, rank, submitter, priority, idempotency_key,
  max_attempts, submitted_at, not_before, queue_timeout
) VALUES (
  :task, :kind, :label, :sealed, :body_digest, :workflow, :driver_type, :tags, :pin, :rank, :submitter, :priority,
  :idempotency_key, :max_attempts, :submitted_at, :not_before, :queue_timeout
) ON CONFLICT DO NOTHING RETURNING seq;

-- tasks_known (postgres): Of several tasks, those that are there already, by their ids or by their submitters' keys.
SELECT id FROM task WHERE id = ANY(:tasks)
UNION ALL
SELECT task.id FROM task
JOIN unnest(CAST(:submitters AS TEXT[]), CAST(:keys AS TEXT[])) AS given (submitter, key)
  ON task.submitter = given.submitter AND task.idempotency_key = given.key;

-- submit_tasks (postgres): Keep several submitted tasks, and offer them.
WITH given AS (
  SELECT * FROM jsonb_to_recordset(CAST(:given AS JSONB)) AS given (
    place BIGINT, task TEXT, kind TEXT, label TEXT, sealed TEXT, body_digest TEXT, driver_type TEXT, tags TEXT, pin TEXT,
    rank BIGINT, submitter TEXT, priority BIGINT, idempotency_key TEXT, max_attempts BIGINT, submitted_at BIGINT,
    queue_timeout BIGINT, shape BIGINT
  )
), made AS (
  INSERT INTO task (
    id, kind, label, sealed, body_digest, driver_type, tags, pin, rank, submitter, priority, idempotency_key,
    max_attempts, submitted_at, queue_timeout
  )
  SELECT task, kind, label, sealed, body_digest, driver_type, tags, pin, rank, submitter, priority, idempotency_key,
    max_attempts, submitted_at, queue_timeout
  FROM given ORDER BY place ON CONFLICT DO NOTHING RETURNING id, seq
)
INSERT INTO ready (task, shape, pin, rank, seq, until)
SELECT given.task, given.shape, given.pin, given.rank, made.seq, interlock_now() + given.queue_timeout
FROM given JOIN made ON made.id = given.task;

-- strategy: Which strategy gave the queued tasks their ranks, and the rank that was last granted.
SELECT name, granted_rank FROM strategy WHERE id = 1;

-- adopt_strategy: Another strategy ranks from now on.
UPDATE strategy SET name = :name, granted_rank = 0 WHERE id = 1 AND name <> :name;

-- note_granted: Remember the rank of a task that was given a device.
UPDATE strategy SET granted_rank = :rank WHERE id = 1;

-- share (sqlite): The rank of a submitter's last task.
SELECT rank FROM share WHERE submitter = :submitter;

-- share (postgres): The same, which nobody else raises until this transaction ends.
SELECT rank FROM share WHERE submitter = :submitter FOR NO KEY UPDATE;

-- keep_share: Remember the rank of a submitter's last task.
INSERT INTO share (submitter, rank) VALUES (:submitter, :rank)
ON CONFLICT (submitter) DO UPDATE SET rank = excluded.rank;

-- forget_shares: Forget the ranks that another strategy gave.
DELETE FROM share;

-- unended_tasks: Every task that is queued, or can come back to the queue, in the order of submission.
SELECT id, submitter, priority, submitted_at FROM task
WHERE id IN (SELECT task FROM ready UNION ALL SELECT task FROM held UNION ALL SELECT task FROM lease)
ORDER BY seq;

-- rerank_task: Give a task another rank.
UPDATE task SET rank = :rank WHERE id = :task;

-- rerank_ready: Give a task another place among those that are offered.
UPDATE ready SET rank = :rank WHERE task = :task;

-- depth_enter: Count one more queued task, unless there are as many as there may be.
UPDATE depth SET queued = queued + 1 WHERE id = 1 AND queued < :most;

-- depth_add (sqlite): Count queued tasks that come back or leave, whatever the limit.
UPDATE depth SET queued = queued + :by WHERE id = 1;

-- depth_add (postgres): The same, in one of sixteen rows, so that transactions seldom wait for one another.
UPDATE depth SET queued = queued + :by WHERE id = 1 + pg_backend_pid() % 16;

-- depth: How many tasks are queued, held ones among them.
SELECT CAST(sum(queued) AS BIGINT) AS queued FROM depth;

-- lock_room (postgres): Nobody else submits until this transaction ends.
SELECT pg_advisory_xact_lock(7304, 1);

-- lock_room_shared (postgres): Nobody counts exactly until this transaction ends.
SELECT pg_advisory_xact_lock_shared(7304, 1);

-- connections (postgres): How many transactions there can be at one time.
SELECT CAST(current_setting('max_connections') AS BIGINT) AS most;

-- shape (sqlite): The id of a shape.
SELECT id FROM shape WHERE wanted = :wanted;

-- shape (postgres): The id of a shape, which nobody drops until this transaction ends.
SELECT id FROM shape WHERE wanted = :wanted FOR KEY SHARE;

-- shapes_named (postgres): The same for several, in the order of their ids.
SELECT id, wanted FROM shape WHERE wanted = ANY(:wanted) ORDER BY id FOR KEY SHARE;

-- lock_shapes (postgres): Nobody else makes a shape until this transaction ends.
SELECT pg_advisory_xact_lock(7304, 2);

-- shape_count: How many shapes are live.
SELECT count(*) AS live FROM shape;

-- insert_shape: Give a shape an id that was never given before.
INSERT INTO shape (wanted) VALUES (:wanted) ON CONFLICT DO NOTHING;

-- empty_shapes (sqlite): The shapes that no ready task has.
SELECT id FROM shape WHERE (SELECT 1 FROM ready WHERE ready.shape = shape.id AND ready.pin IS NULL ORDER BY rank, seq LIMIT 1) IS NULL
  AND (SELECT 1 FROM ready WHERE ready.shape = shape.id AND ready.pin IS NOT NULL ORDER BY rank, seq LIMIT 1) IS NULL;

-- empty_shapes (postgres): The same, locked; but for those that somebody is about to use.
SELECT id FROM shape WHERE (SELECT 1 FROM ready WHERE ready.shape = shape.id AND ready.pin IS NULL ORDER BY rank, seq LIMIT 1) IS NULL
  AND (SELECT 1 FROM ready WHERE ready.shape = shape.id AND ready.pin IS NOT NULL ORDER BY rank, seq LIMIT 1) IS NULL
ORDER BY id FOR UPDATE SKIP LOCKED;

-- drop_shape: Forget a shape that no ready task has.
DELETE FROM shape WHERE id = :shape
  AND (SELECT 1 FROM ready WHERE ready.shape = :shape AND ready.pin IS NULL ORDER BY rank, seq LIMIT 1) IS NULL
  AND (SELECT 1 FROM ready WHERE ready.shape = :shape AND ready.pin IS NOT NULL ORDER BY rank, seq LIMIT 1) IS NULL;

-- insert_ready: Offer a queued task.
INSERT INTO ready (task, shape, pin, rank, seq, until) VALUES (:task, :shape, :pin, :rank, :seq, :until);

-- delete_ready: Take a task out of the offered ones.
DELETE FROM ready WHERE task = :task;

-- take_ready: Take a task that has not waited for too long out of the offered ones.
DELETE FROM ready WHERE task = :task AND (until IS NULL OR until > interlock_now());

-- ready_overdue (sqlite): Tasks that have waited for too long.
SELECT task FROM ready WHERE until <= interlock_now() ORDER BY until LIMIT 1000;

-- ready_overdue (postgres): Tasks that have waited for too long and that nobody else is moving.
SELECT task FROM ready WHERE until <= (SELECT interlock_now()) ORDER BY until LIMIT 1000 FOR UPDATE SKIP LOCKED;

-- insert_held: Keep a queued task from being offered until a time.
INSERT INTO held (task, until, reason) VALUES (:task, :until, :reason);

-- delete_held: Take a task out of the held ones.
DELETE FROM held WHERE task = :task;

-- held: Why and until when a task is held.
SELECT until, reason FROM held WHERE task = :task;

-- held_due (sqlite): Held tasks whose time has come.
SELECT task FROM held WHERE until <= interlock_now() ORDER BY until LIMIT 1000;

-- held_due (postgres): Held tasks whose time has come and that nobody else is moving.
SELECT task FROM held WHERE until <= (SELECT interlock_now()) ORDER BY until LIMIT 1000 FOR UPDATE SKIP LOCKED;

-- held_first: When the first held task is due.
SELECT min(until) AS until FROM held;

-- end_task: Make a task terminal, once.
UPDATE task SET ended_at = interlock_now(), end_status = :status, end_reason = :reason, result = :result
WHERE id = :task AND end_status IS NULL;

-- request_cancel: Ask for a dispatched task to be cancelled.
UPDATE task SET cancel_requested_at = interlock_now() WHERE id = :task AND cancel_requested_at IS NULL;

-- count_end: Count the end of an attempt, where it counts.
UPDATE task SET counted = counted + :counted, uncounted = uncounted + :uncounted WHERE id = :task;

-- host_by_token: The host that a credential belongs to.
SELECT id, generation FROM host WHERE token_hash = :token_hash;

-- register_host: Make a host known, or give it a new credential.
INSERT INTO host (id, token_hash, registered_at) VALUES (:host, :token_hash, interlock_now())
ON CONFLICT (id) DO UPDATE SET token_hash = excluded.token_hash;

-- host: One host.
SELECT * FROM host WHERE id = :host;

-- hosts: Every host.
SELECT *, interlock_now() AS now FROM host ORDER BY id;

-- beat: A host was heard of.
UPDATE host SET boot_id = :boot_id, generation = :generation, last_beat_at = interlock_now() WHERE id = :host;

-- goodbye: A host has left.
UPDATE host SET last_beat_at = NULL WHERE id = :host AND generation = :generation;

-- device: One device by its identity.
SELECT * FROM device WHERE host = :host AND serial = :serial;

-- device_by_id: One device by its id, with what makes it a candidate.
SELECT device.*, host.last_beat_at FROM device JOIN host ON host.id = device.host WHERE device.id = :device;

-- devices_of_host: Every device of a host.
SELECT * FROM device WHERE host = :host;

-- devices: Every device that is not forgotten, with what its state follows from.
SELECT
  device.*, device_occupancy.occupancy, host.last_beat_at, idle.since AS idle_since, lease.task AS task,
  vacating.attempt AS vacating_attempt,
  CASE WHEN device.reported = 1 AND host.last_beat_at > interlock_now() - :presence THEN 1 ELSE 0 END AS present
FROM device
JOIN device_occupancy ON device_occupancy.device = device.id
JOIN host ON host.id = device.host
LEFT JOIN idle ON idle.device = device.id
LEFT JOIN lease ON lease.device = device.id
LEFT JOIN vacating ON vacating.device = device.id
WHERE device.forgotten = 0
ORDER BY device.host, device.serial;

-- insert_device: Make a device known.
INSERT INTO device (id, host, serial, driver_type, tags, exclusive_tags, service, service_reason, registered_at)
VALUES (:device, :host, :serial, :driver_type, :tags, :exclusive_tags, :service, :service_reason, interlock_now());

-- update_device: A device is reported with other capabilities, or again.
UPDATE device SET driver_type = :driver_type, tags = :tags, exclusive_tags = :exclusive_tags, reported = 1,
  forgotten = 0
WHERE id = :device;

-- unreport_device: A device is no longer reported by its host.
UPDATE device SET reported = 0 WHERE id = :device;

-- forget_device: A device is gone for good, and listed no more.
UPDATE device SET reported = 0, forgotten = 1 WHERE id = :device;

-- set_service: Take a device out of service, or back.
UPDATE device SET service = :service, service_reason = :reason, losses = 0 WHERE id = :device;

-- count_loss: Count one more infrastructure failure in a row.
UPDATE device SET losses = losses + 1 WHERE id = :device RETURNING losses, service;

-- forget_losses: The device has worked.
UPDATE device SET losses = 0 WHERE id = :device AND losses > 0;

-- raise_fence: Give the device's next fence, and note how long it was held the last time.
UPDATE device SET fence = fence + 1, took = :idle_since - granted_at, granted_at = interlock_now()
WHERE id = :device RETURNING fence;

-- insert_idle: The device can be offered.
INSERT INTO idle (device, since) VALUES (:device, interlock_now());

-- delete_idle: The device is taken.
DELETE FROM idle WHERE device = :device RETURNING since;

-- insert_vacating: The device is not free yet after an attempt.
INSERT INTO vacating (device, state, since, attempt) VALUES (:device, :state, interlock_now(), :attempt);

-- vacating: What a device waits for before it is free.
SELECT state, attempt FROM vacating WHERE device = :device;

-- vacating_of_host: The devices of a host that are not free yet.
SELECT device.id AS device, device.serial, vacating.state, vacating.attempt
FROM vacating JOIN device ON device.id = vacating.device WHERE device.host = :host ORDER BY device.serial;

-- delete_vacating: The device has become free.
DELETE FROM vacating WHERE device = :device;

-- start_cleaning: The old attempt is gone from a device, which is not clean yet.
UPDATE vacating SET state = 'cleaning', since = interlock_now() WHERE device = :device AND state = 'stop_unconfirmed';

-- next_number: The number of a task's next attempt.
SELECT coalesce(max(number), 0) + 1 AS number FROM attempt WHERE task = :task;

-- attempt: One attempt by its id.
SELECT * FROM attempt WHERE id = :attempt;

-- attempt_by_lease: The attempt that a lease belongs or belonged to.
SELECT * FROM attempt WHERE lease = :lease;

-- assignments: What a host is told of what one claim took: the attempts, their devices, and what the tasks ask for.
SELECT attempt.lease, attempt.id AS attempt, attempt.number, attempt.serial, attempt.fence, device.driver_type,
  task.id AS task, task.kind, task.sealed, task.workflow, task.predecessor, task.cancel_requested_at
FROM attempt JOIN task ON task.id = attempt.task JOIN device ON device.id = attempt.device
WHERE attempt.claim_id = :claim_id;

-- attempts_by_claim: The attempts that one claim took.
SELECT * FROM attempt WHERE claim_id = :claim_id ORDER BY id;

-- insert_attempt: Put an attempt on record.
INSERT INTO attempt (id, lease, task, number, device, host, serial, fence, assigned_at)
VALUES (:attempt, :lease, :task, :number, :device, :host, :serial, :fence, interlock_now());

-- attempts_known (postgres): Of several attempts, those that are there already.
SELECT id FROM attempt WHERE id = ANY(:attempts);

-- tasks_to_grant (postgres): Of several tasks those that are offered, locked in the one order, each with its next number.
SELECT ready.task, ready.until, task.driver_type, task.tags, task.pin,
  (SELECT coalesce(max(attempt.number), 0) + 1 FROM attempt WHERE attempt.task = ready.task) AS number
FROM ready JOIN task ON task.id = ready.task
WHERE ready.task = ANY(:tasks) ORDER BY ready.task FOR UPDATE OF ready;

-- devices_to_grant (postgres): Several devices, with what makes them candidates.
SELECT device.*, host.last_beat_at, idle.since AS idle_since
FROM device JOIN host ON host.id = device.host LEFT JOIN idle ON idle.device = device.id
WHERE device.id = ANY(:devices);

-- grant_attempts (postgres): Bind several tasks and devices, all of which are locked, by new attempts with their leases.
WITH given AS (
  SELECT * FROM jsonb_to_recordset(CAST(:given AS JSONB)) AS given (
    attempt TEXT, lease TEXT, task TEXT, device TEXT, number BIGINT, ttl BIGINT
  )
), left_queue AS (
  DELETE FROM ready USING given WHERE ready.task = given.task
), taken AS (
  DELETE FROM idle USING given WHERE idle.device = given.device RETURNING idle.device, idle.since
), raised AS (
  UPDATE device SET fence = fence + 1, took = taken.since - granted_at, granted_at = interlock_now()
  FROM taken WHERE device.id = taken.device RETURNING device.id, device.host, device.serial, device.fence
), made AS (
  INSERT INTO attempt (id, lease, task, number, device, host, serial, fence, assigned_at)
  SELECT given.attempt, given.lease, given.task, given.number, given.device, raised.host, raised.serial, raised.fence,
    interlock_now()
  FROM given JOIN raised ON raised.id = given.device
)
INSERT INTO lease (id, attempt, task, device, host, state, expires_at)
SELECT given.lease, given.attempt, given.task, given.device, raised.host, 'assigned', interlock_now() + given.ttl
FROM given JOIN raised ON raised.id = given.device;

-- attempts_to_end (postgres): The attempts of several leases, with the leases that are live and their tasks.
SELECT attempt.lease, attempt.id AS attempt, attempt.host AS attempt_host, attempt.report, lease.state, lease.host,
  lease.expires_at, lease.device, lease.task, task.counted, task.max_attempts, task.uncounted, task.cancel_requested_at
FROM attempt LEFT JOIN lease ON lease.id = attempt.lease LEFT JOIN task ON task.id = lease.task
WHERE attempt.lease = ANY(:leases);

-- end_attempts (postgres): Close several attempts, whose devices and leases are locked, each with its task.
WITH given AS (
  SELECT * FROM jsonb_to_recordset(CAST(:given AS JSONB)) AS given (
    lease TEXT, attempt TEXT, device TEXT, task TEXT, occupancy TEXT, stopped BOOLEAN, end_kind TEXT, reason TEXT,
    report TEXT, status TEXT, task_reason TEXT, result TEXT
  )
), unbound AS (
  DELETE FROM lease USING given WHERE lease.id = given.lease
), freed AS (
  INSERT INTO idle (device, since) SELECT device, interlock_now() FROM given WHERE occupancy = 'idle'
), vacated AS (
  INSERT INTO vacating (device, state, since, attempt)
  SELECT device, occupancy, interlock_now(), attempt FROM given WHERE occupancy <> 'idle'
), worked AS (
  UPDATE device SET losses = 0 FROM given WHERE device.id = given.device AND device.losses > 0
), ended AS (
  UPDATE task SET ended_at = interlock_now(), end_status = given.status, end_reason = given.task_reason,
    result = given.result
  FROM given WHERE task.id = given.task AND task.end_status IS NULL RETURNING task.id
)
UPDATE attempt SET ended_at = interlock_now(), end_kind = given.end_kind, end_reason = given.reason,
  report = given.report, stopped_at = CASE WHEN given.stopped THEN interlock_now() ELSE attempt.stopped_at END
FROM given JOIN ended ON ended.id = given.task
WHERE attempt.id = given.attempt AND attempt.ended_at IS NULL;

-- claim_attempts (sqlite): Note when and by which claim several attempts were taken, by the JSON list of their leases.
UPDATE attempt SET claimed_at = interlock_now(), claim_id = :claim_id
WHERE lease IN (SELECT value FROM json_each(:leases)) AND claimed_at IS NULL;

-- claim_attempts (postgres): The same.
UPDATE attempt SET claimed_at = interlock_now(), claim_id = :claim_id
WHERE lease IN (SELECT jsonb_array_elements_text(CAST(:leases AS JSONB))) AND claimed_at IS NULL;

-- end_attempt: Close an attempt, once.
UPDATE attempt SET ended_at = interlock_now(), end_kind = :end_kind, end_reason = :reason, report = :report
WHERE id = :attempt AND ended_at IS NULL;

-- keep_late_report: Keep as evidence what was reported under a lost lease.
UPDATE attempt SET late_report = :report WHERE id = :attempt;

-- lock_device (postgres): Nobody else ends or begins an attempt on a device until this transaction ends.
SELECT id FROM device WHERE id = :device FOR NO KEY UPDATE;

-- lock_devices (postgres): The same for several, in the one order.
SELECT id FROM device WHERE id = ANY(:devices) ORDER BY id FOR NO KEY UPDATE;

-- lock_device_of_lease (postgres): The same for the device of the attempt that a lease belongs or belonged to.
SELECT device.id FROM device JOIN attempt ON attempt.device = device.id WHERE attempt.lease = :lease
FOR NO KEY UPDATE OF device;

-- lock_devices_of_leases (postgres): The same for several leases, in the one order.
SELECT device.id FROM device JOIN attempt ON attempt.device = device.id WHERE attempt.lease = ANY(:leases)
ORDER BY device.id FOR NO KEY UPDATE OF device;

-- lock_leases (postgres): Several leases, in the one order.
SELECT id FROM lease WHERE id = ANY(:leases) ORDER BY id FOR NO KEY UPDATE;

-- lock_ready (postgres): Several offered tasks, in the one order.
SELECT task FROM ready WHERE task = ANY(:tasks) ORDER BY task FOR UPDATE;

-- lock_task (postgres): Nobody else ends or continues a task until this transaction ends.
SELECT id FROM task WHERE id = :task FOR NO KEY UPDATE;

-- lock_claim (postgres): Nobody else claims under one claim id until this transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended(:claim_id, 7304));

-- lock_assigned_of_host (postgres): The devices of the leases that a host has not claimed, in the one order.
SELECT device.id FROM device JOIN lease ON lease.device = device.id
WHERE lease.host = :host AND lease.state = 'assigned' ORDER BY device.id FOR NO KEY UPDATE OF device;

-- lock_leases_to_grace (postgres): Every lease, in the one order.
SELECT id FROM lease ORDER BY id FOR NO KEY UPDATE;

-- insert_lease: Bind a task and a device to each other.
INSERT INTO lease (id, attempt, task, device, host, state, expires_at)
VALUES (:lease, :attempt, :task, :device, :host, 'assigned', interlock_now() + :ttl);

-- lock_lease (sqlite): The row of a lease; there is one writer, so it is locked already.
SELECT * FROM lease WHERE id = :lease;

-- lock_lease (postgres): The row of a lease, locked until the transaction ends.
SELECT * FROM lease WHERE id = :lease FOR NO KEY UPDATE;

-- lease: One lease.
SELECT * FROM lease WHERE id = :lease;

-- lease_of_task: The live lease of a task.
SELECT * FROM lease WHERE task = :task;

-- lease_of_device: The live lease of a device.
SELECT * FROM lease WHERE device = :device;

-- leases_of_host: The live leases of a host.
SELECT lease.*, device.serial, task.cancel_requested_at
FROM lease JOIN device ON device.id = lease.device JOIN task ON task.id = lease.task
WHERE lease.host = :host AND lease.expires_at > interlock_now() ORDER BY lease.id;

-- leases_to_claim: The unexpired assigned leases of a host, oldest first.
SELECT lease.* FROM lease JOIN attempt ON attempt.id = lease.attempt
WHERE lease.host = :host AND lease.state = 'assigned' AND lease.expires_at > interlock_now()
ORDER BY attempt.assigned_at, lease.id LIMIT :most;

-- lock_leases_to_claim (sqlite): The same for one generation of a host; there is one writer, so they are locked already.
SELECT lease.* FROM lease JOIN attempt ON attempt.id = lease.attempt JOIN host ON host.id = lease.host
WHERE lease.host = :host AND lease.state = 'assigned' AND lease.expires_at > interlock_now()
  AND coalesce(host.generation, '') = :generation
ORDER BY attempt.assigned_at, lease.id LIMIT :most;

-- lock_leases_to_claim (postgres): The same, locked; but for those that somebody else has locked.
SELECT lease.* FROM lease JOIN attempt ON attempt.id = lease.attempt JOIN host ON host.id = lease.host
WHERE lease.host = :host AND lease.state = 'assigned' AND lease.expires_at > interlock_now()
  AND coalesce(host.generation, '') = :generation
ORDER BY attempt.assigned_at, lease.id LIMIT :most FOR SHARE OF host FOR NO KEY UPDATE OF lease SKIP LOCKED;

-- claim_leases (sqlite): Turn assigned leases into claimed ones, by the JSON list of their ids.
UPDATE lease SET state = 'claimed', expires_at = interlock_now() + :ttl, graced = 0
WHERE id IN (SELECT value FROM json_each(:leases)) AND state = 'assigned' AND expires_at > interlock_now() RETURNING id;

-- claim_leases (postgres): The same.
UPDATE lease SET state = 'claimed', expires_at = interlock_now() + :ttl, graced = 0
WHERE id IN (SELECT jsonb_array_elements_text(CAST(:leases AS JSONB))) AND state = 'assigned'
  AND expires_at > interlock_now() RETURNING id;

-- renew_lease: Extend a lease that is still good.
UPDATE lease SET expires_at = interlock_now() + :ttl, graced = 0
WHERE id = :lease AND state = 'claimed' AND expires_at > interlock_now();

-- delete_lease: Unbind a task and a device.
DELETE FROM lease WHERE id = :lease;

-- leases_expired: The leases whose deadline has passed.
SELECT id, device FROM lease WHERE expires_at <= (SELECT interlock_now()) ORDER BY id;

-- assigned_of_host: The leases of a host that it has not claimed.
SELECT * FROM lease WHERE host = :host AND state = 'assigned' ORDER BY id;

-- run: The head of a run: its plan, its charges, why it stopped, and where the chain of its saves ends.
SELECT * FROM run WHERE run_id = :run_id;

-- run_ordinal: The place of a task's next run in its chain.
SELECT coalesce(max(ordinal), 0) + 1 AS ordinal FROM run WHERE task = :task;

-- insert_run: Keep the head of a run with its first save. The chain of its saves begins at no digest.
INSERT INTO run (
  run_id, task, parent, ordinal, base, sequence, digest, attempt,
  plan_digest, admitted_actions, reserved_units, elapsed_ns, stop_reason
) VALUES (
  :run_id, :task, :parent, :ordinal, '', :sequence, :digest, :attempt,
  :plan_digest, :admitted_actions, :reserved_units, :elapsed_ns, :stop_reason
);

-- update_run: Move the head of a run on to its next save.
UPDATE run SET sequence = :sequence, digest = :digest, attempt = :attempt, admitted_actions = :admitted_actions,
  reserved_units = :reserved_units, elapsed_ns = :elapsed_ns, stop_reason = :stop_reason
WHERE run_id = :run_id AND sequence = :sequence - 1;

-- insert_save: Keep one save of a run.
INSERT INTO run_save (run_id, sequence, digest, body) VALUES (:run_id, :sequence, :digest, :body);

-- save: One save of a run.
SELECT digest, body FROM run_save WHERE run_id = :run_id AND sequence = :sequence;

-- saves_of_run: Every save of a run that is kept, in order.
SELECT sequence, digest, body FROM run_save WHERE run_id = :run_id ORDER BY sequence;

-- insert_states (sqlite): Keep the state of each action of a run, as the JSON pairs of its first save have them.
INSERT INTO run_state (run_id, action_id, state)
SELECT :run_id, json_extract(pair.value, '$[0]'), json_extract(pair.value, '$[1]') FROM json_each(:pairs) AS pair;

-- insert_states (postgres): Keep the state of each action of a run, as the JSON pairs of its first save have them.
INSERT INTO run_state (run_id, action_id, state)
SELECT CAST(:run_id AS TEXT), pair.value ->> 0, pair.value ->> 1
FROM jsonb_array_elements(CAST(:pairs AS JSONB)) AS pair (value);

-- move_state: Take an action of a run from one state to another.
UPDATE run_state SET state = :state WHERE run_id = :run_id AND action_id = :action_id AND state = :before;

-- state: The state of one action by its run's last save.
SELECT state FROM run_state WHERE run_id = :run_id AND action_id = :action_id;

-- states_of_task: The state of each action of each run of a task.
SELECT run_state.run_id, run_state.action_id, run_state.state
FROM run_state JOIN run ON run.run_id = run_state.run_id
WHERE run.task = :task ORDER BY run.ordinal, run_state.action_id;

-- runs_of_task: The head of every run of a task in the order of its chain.
SELECT * FROM run WHERE task = :task ORDER BY ordinal;

-- entry: The journal's entry for one effect.
SELECT * FROM journal WHERE run_id = :run_id AND action_id = :action_id;

-- insert_entry: Write that an effect is about to begin.
INSERT INTO journal (
  run_id, action_id, task, attempt, host, serial, tool_id, arguments_digest, nonce, state, handed_over_at
) VALUES (
  :run_id, :action_id, :task, :attempt, :host, :serial, :tool_id, :arguments_digest, :nonce, 'handed_over',
  interlock_now()
);

-- withdraw_entry: Write that a handed-over effect was not begun, by this attempt or, as a probe says, by another.
UPDATE journal SET state = 'withdrawn', settled_at = interlock_now()
WHERE run_id = :run_id AND action_id = :action_id AND state = 'handed_over' AND task = :task;

-- settle_entry: Write what came of an effect.
UPDATE journal SET state = 'settled', outcome = :outcome, evidence = :evidence, settled_at = interlock_now()
WHERE run_id = :run_id AND action_id = :action_id AND state = 'handed_over' AND task = :task;

-- journal_of_task: Every effect of a task, in the order of handing over.
SELECT journal.*, attempt.stopped_at, attempt.ended_at AS attempt_ended_at FROM journal JOIN attempt ON attempt.id = journal.attempt
WHERE journal.task = :task ORDER BY journal.handed_over_at, journal.run_id, journal.action_id;

-- keep_output: Keep what a committed action gave.
INSERT INTO output (task, action_id, sealed, run_id) VALUES (:task, :action_id, :sealed, :run_id)
ON CONFLICT (task, action_id) DO UPDATE SET sealed = excluded.sealed, run_id = excluded.run_id;

-- output: What a committed action gave.
SELECT sealed FROM output WHERE task = :task AND action_id = :action_id;

-- note_stop: Note that everything of an attempt is certainly gone.
UPDATE attempt SET stopped_at = interlock_now() WHERE id = :attempt AND stopped_at IS NULL;

-- note_stops: Note that everything that left an effect in doubt on a device is certainly gone.
UPDATE attempt SET stopped_at = interlock_now()
WHERE stopped_at IS NULL AND ended_at IS NOT NULL AND id IN (
  SELECT attempt FROM journal
  WHERE host = :host AND serial = :serial AND answer IS NULL AND (state = 'handed_over' OR outcome = 'review_required')
);

-- doubts: The effects in doubt of tasks that have ended, oldest first, with what is known of each.
SELECT
  journal.*, task.label, task.end_status, task.end_reason, attempt.stopped_at, attempt.ended_at AS attempt_ended_at,
  successor.id AS successor
FROM journal
JOIN task ON task.id = journal.task
JOIN attempt ON attempt.id = journal.attempt
LEFT JOIN task AS successor ON successor.predecessor = task.id
WHERE journal.answer IS NULL AND (journal.state = 'handed_over' OR journal.outcome = 'review_required')
  AND task.end_status IS NOT NULL
ORDER BY journal.handed_over_at, journal.run_id, journal.action_id LIMIT :most;

-- doubts_of_task: The effects of one task that are in doubt and unanswered.
SELECT journal.*, attempt.stopped_at FROM journal JOIN attempt ON attempt.id = journal.attempt
WHERE journal.task = :task AND journal.answer IS NULL
  AND (journal.state = 'handed_over' OR journal.outcome = 'review_required')
ORDER BY journal.handed_over_at, journal.run_id, journal.action_id;

-- answer_entry: Write a person's answer about an effect, once.
UPDATE journal SET answer = :answer, answered_by = :answered_by, answered_at = interlock_now()
WHERE run_id = :run_id AND action_id = :action_id AND task = :task AND answer IS NULL;

-- successor: The task that continues a task.
SELECT id FROM task WHERE predecessor = :task;

-- insert_successor: Make the task that continues another one, with what that asked for.
INSERT INTO task (
  id, kind, label, sealed, body_digest, workflow, driver_type, tags, pin, rank, submitter, priority, max_attempts,
  queue_timeout, submitted_at, predecessor
) SELECT
  :successor, kind, label, sealed, body_digest, workflow, driver_type, tags, pin, rank, submitter, priority,
  max_attempts, queue_timeout, interlock_now(), id
FROM task WHERE id = :task RETURNING id;

-- inherit_outputs: Give a successor what the actions of its predecessor left.
INSERT INTO output (task, action_id, sealed, run_id)
SELECT :successor, action_id, sealed, run_id FROM output WHERE task = :task;

-- audit: Put an operator's act on record.
INSERT INTO audit (at, what, device, attempt) VALUES (interlock_now(), :what, :device, :attempt);

-- shapes: Every live shape.
SELECT id, wanted FROM shape ORDER BY id;

-- idle_devices: The devices that can be offered, in the order of host and serial.
SELECT device.*, idle.since AS idle_since, host.last_beat_at
FROM idle JOIN device ON device.id = idle.device JOIN host ON host.id = device.host
WHERE device.service = 'in_service' AND device.reported = 1 AND host.last_beat_at > interlock_now() - :presence
ORDER BY device.host, device.serial;

-- ready_heads: The first tasks of a shape that are not pinned.
SELECT task, rank, seq FROM ready WHERE shape = :shape AND pin IS NULL ORDER BY rank, seq LIMIT :most;

-- The order below is for the planner: only the one index gives it, however few pins or shapes there seem to be.

-- pinned_idle: The devices that can be offered and that some task is pinned to: one look in an index for each.
SELECT device.id AS device
FROM idle JOIN device ON device.id = idle.device JOIN host ON host.id = device.host
WHERE device.service = 'in_service' AND device.reported = 1 AND host.last_beat_at > interlock_now() - :presence
  AND (
    SELECT shape FROM ready WHERE ready.pin = device.host || '/' || device.serial ORDER BY shape, rank, seq LIMIT 1
  ) IS NOT NULL;

-- pinned_shapes: The shapes of the tasks that are pinned to a device: one look in an index for each shape.
WITH RECURSIVE found (shape) AS (
  SELECT (SELECT shape FROM ready WHERE pin = :pin ORDER BY shape, rank, seq LIMIT 1)
  UNION ALL
  SELECT (
    SELECT ready.shape FROM ready WHERE ready.pin = :pin AND ready.shape > found.shape ORDER BY shape, rank, seq LIMIT 1
  ) FROM found WHERE found.shape IS NOT NULL
)
SELECT shape FROM found WHERE shape IS NOT NULL;

-- pinned_heads: The first tasks of a shape that are pinned to a device.
SELECT task, rank, seq FROM ready WHERE pin = :pin AND shape = :shape ORDER BY rank, seq LIMIT :most;

-- ready_tasks: Every task that is offered.
SELECT task, shape, pin, rank, seq FROM ready ORDER BY rank, seq;

-- ready_place: How many tasks that are offered come before a task.
SELECT count(*) AS ahead FROM ready JOIN ready AS own ON own.task = :task
WHERE ready.rank < own.rank OR (ready.rank = own.rank AND ready.seq < own.seq);

-- attempts_of_task: Every attempt of a task.
SELECT * FROM attempt WHERE task = :task ORDER BY number;

-- tasks: The newest tasks.
SELECT task.*, task_status.status, lease.host, device.serial, successor.id AS successor
FROM task LEFT JOIN task AS successor ON successor.predecessor = task.id
JOIN task_status ON task_status.task = task.id
LEFT JOIN lease ON lease.task = task.id
LEFT JOIN device ON device.id = lease.device
WHERE task.seq < :before ORDER BY task.seq DESC LIMIT :most;

-- counts: How many tasks stand where.
SELECT status, count(*) AS tasks FROM task_status GROUP BY status ORDER BY status;

-- broken_one_place: A task that is not in exactly one of ready, held, leased and ended.
SELECT task.id AS what FROM task
LEFT JOIN ready ON ready.task = task.id
LEFT JOIN held ON held.task = task.id
LEFT JOIN lease ON lease.task = task.id
WHERE CASE WHEN ready.task IS NULL THEN 0 ELSE 1 END + CASE WHEN held.task IS NULL THEN 0 ELSE 1 END
  + CASE WHEN lease.task IS NULL THEN 0 ELSE 1 END + CASE WHEN task.end_status IS NULL THEN 0 ELSE 1 END <> 1;

-- broken_device_place: A device that is not in exactly one of idle, vacating and leased.
SELECT device.id AS what FROM device
LEFT JOIN idle ON idle.device = device.id
LEFT JOIN vacating ON vacating.device = device.id
LEFT JOIN lease ON lease.device = device.id
WHERE CASE WHEN idle.device IS NULL THEN 0 ELSE 1 END + CASE WHEN vacating.device IS NULL THEN 0 ELSE 1 END
  + CASE WHEN lease.device IS NULL THEN 0 ELSE 1 END <> 1;

-- broken_live_attempt: A lease without its open attempt, or an open attempt without its lease.
SELECT coalesce(lease.id, attempt.id) AS what FROM attempt
LEFT JOIN lease ON lease.attempt = attempt.id AND lease.id = attempt.lease AND lease.device = attempt.device
WHERE (attempt.ended_at IS NULL) <> (lease.id IS NOT NULL)
UNION ALL
SELECT lease.id FROM lease LEFT JOIN attempt ON attempt.id = lease.attempt WHERE attempt.id IS NULL;

-- broken_claim: A claimed lease of an attempt that was never claimed, or the reverse.
SELECT lease.id AS what FROM lease JOIN attempt ON attempt.id = lease.attempt
WHERE (lease.state = 'claimed') <> (attempt.claimed_at IS NOT NULL);

-- broken_fence: Two attempts of a device whose fences do not grow, or a fence that its device has not reached.
SELECT attempt.id AS what FROM attempt JOIN device ON device.id = attempt.device WHERE attempt.fence > device.fence
UNION ALL
SELECT max(id) FROM attempt GROUP BY device, fence HAVING count(*) > 1;

-- broken_order: An attempt whose times do not go forward.
SELECT id AS what FROM attempt
WHERE claimed_at < assigned_at OR ended_at < assigned_at OR ended_at < claimed_at;

-- broken_overlap: Two attempts that held one device at one time.
SELECT id AS what FROM (
  SELECT
    id, assigned_at, lag(id) OVER earlier AS previous, lag(ended_at) OVER earlier AS previous_ended_at,
    max(ended_at) OVER (PARTITION BY device ORDER BY fence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS free_at
  FROM attempt WINDOW earlier AS (PARTITION BY device ORDER BY fence)
) AS held
WHERE previous IS NOT NULL AND (previous_ended_at IS NULL OR free_at > assigned_at);

-- broken_depth: The counter of queued tasks, where it is not what the tables hold.
SELECT counted.queued AS what FROM (SELECT CAST(sum(queued) AS BIGINT) AS queued FROM depth) AS counted
WHERE counted.queued <> (SELECT count(*) FROM ready) + (SELECT count(*) FROM held);

-- broken_journal: An effect handed over twice: two entries that were not withdrawn for one step of one task.
SELECT task AS what FROM journal WHERE state <> 'withdrawn' AND (outcome IS NULL OR outcome = 'committed')
GROUP BY task, action_id HAVING count(*) > 1;

-- task_outputs: Which actions of a task have left an output.
SELECT action_id FROM output WHERE task = :task ORDER BY action_id;
