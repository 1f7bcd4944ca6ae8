-- fairlock/leave_queue: leave the queue.
-- uses     lib/primary, fairlock/queue, fairlock/hand_off
-- KEYS[1..2]  lock_hash, channel: see fair_lock in fairlock/queue
-- KEYS[3]     not used
-- KEYS[4..8]  shared_counts, queue, deadlines, waiters, clients
-- ARGV[1]  id (text): the waiter's
-- ARGV[2]  publish (command)
-- ARGV[3]  client (text): that leaves; others may wait with the same id
-- returns  nothing
local lock = fair_lock(KEYS)
local id, publish, client = ARGV[1], ARGV[2], ARGV[3]

require_primary(lock.hash)
return leave_queue(lock, id, publish, client)
