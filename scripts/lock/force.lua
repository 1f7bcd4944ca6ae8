-- lock/force: free the lock whoever holds it.
-- uses     tell
-- KEYS[1]  lock hash
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- KEYS[4]  shared counts
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- returns  the ids that held it, 0 when none did; a repetition: 1 in place of the ids
local memory = redis.call('get', KEYS[3])
if memory then
  return tonumber(memory)
end
-- Ask the type: what is no lock must not be deleted.
local ids = redis.call('hkeys', KEYS[1])
local held = redis.call('del', KEYS[1])
redis.call('del', KEYS[4])
redis.call('set', KEYS[3], held, 'px', ARGV[2])
if held == 1 then
  tell(ARGV[1])
  return ids
end
return held
