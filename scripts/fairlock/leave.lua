-- fairlock/leave: stop standing in the queue.
-- uses     tell
-- KEYS[1]  lock hash
-- KEYS[2]  channel; a waiter's own is this one, a colon and its id
-- KEYS[3]  unused
-- KEYS[4]  queue
-- KEYS[5]  deadlines
-- KEYS[6]  ours
-- KEYS[7]  signs of life
-- ARGV[1]  waiter's id
-- ARGV[2]  publish command
-- returns  1 when it stood there, 0 when not
local stood = redis.call('zscore', KEYS[5], ARGV[1]) and 1 or 0
local front = redis.call('lindex', KEYS[4], 0) == ARGV[1]
drop(ARGV[1])
if stood == 1 then
  mark(now(), front)
  if front and redis.call('exists', KEYS[1]) == 0 then
    tell(ARGV[2])
  end
end
return stood
