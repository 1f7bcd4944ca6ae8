-- semaphore/delete: no semaphore any more.
-- uses     count, remember
-- KEYS[1]  permits left
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- returns  1 when there was one, 0 when not
local memory = redis.call('get', KEYS[3])
if memory then
  return tonumber(memory)
end
count(KEYS[1]) -- what is no number must not be deleted
return remember(redis.call('del', KEYS[1]))
