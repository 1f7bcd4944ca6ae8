-- latch/countdown: one less; the last one opens the latch, which is gone then.
-- uses     count, remember
-- KEYS[1]  count
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- returns  1
if redis.call('exists', KEYS[3]) == 1 then
  return 1
end
local left = count(KEYS[1])
-- In all branches the first write is one that a full Redis allows.
if left and left <= 1 then
  redis.call('del', KEYS[1])
else
  redis.call('del', KEYS[3])
  if left then
    redis.call('decr', KEYS[1])
  end
end
remember(1)
if left == 1 then
  redis.call(ARGV[1], KEYS[2], '0') -- a false one makes Redisson's waiters spin
end
return 1
