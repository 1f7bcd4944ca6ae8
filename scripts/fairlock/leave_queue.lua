-- fairlock/leave_queue: leave the queue.
-- uses     fairlock/queue, fairlock/hand_off
-- KEYS[1..]  the keys of a fair lock: see fair_lock in fairlock/queue
-- ARGV[1]  waiter's id
-- ARGV[2]  publish command
-- returns  nil
local lock = fair_lock(KEYS)
local id, publish = ARGV[1], ARGV[2]

return leave_queue(lock, id, publish)
