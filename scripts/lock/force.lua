-- lock/force: free the lock whoever holds it.
-- uses     tell
-- KEYS[1]  lock hash
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- KEYS[4]  shared counts
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- returns  1 when it was held, 0 when not
local memory = redis.call('get', KEYS[3])
if memory then
  return tonumber(memory)
end
-- Ask the type: what is no lock must not be deleted.
redis.call('hlen', KEYS[1])
local held = redis.call('del', KEYS[1])
redis.call('del', KEYS[4])
redis.call('set', KEYS[3], held, 'px', ARGV[2])
if held == 1 then
  tell(ARGV[1])
end
return held
