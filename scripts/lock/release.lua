-- lock/release: free the lock of an id that belongs to one acquisition alone, and see that a late copy of it takes nothing.
-- uses     tell
-- KEYS[1]  lock hash
-- KEYS[2]  channel
-- KEYS[3]  memory of this id's release
-- ARGV[1]  owner id
-- ARGV[2]  publish command
-- ARGV[3]  memory ttl, ms
-- returns  1 when it was held, 0 when not
local memory = redis.call('get', KEYS[3])
if memory then
  return tonumber(memory)
end
local held = redis.call('hexists', KEYS[1], ARGV[1])
-- The first write is one that a full Redis allows.
redis.call('del', held == 1 and KEYS[1] or KEYS[3])
redis.call('set', KEYS[3], held, 'px', ARGV[3])
if held == 1 then
  tell(ARGV[2])
end
return held
