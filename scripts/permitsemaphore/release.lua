-- permitsemaphore/release: give back permits, and see that a late copy of their acquisition takes nothing.
-- uses     count, permits, remember, supply
-- KEYS[1]  free permits
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- KEYS[4]  leases
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- ARGV[3]  ids of 16 bytes each
-- ARGV[4]  1 to give back all or none, 0 to give back what is left of them
-- returns  1 when all were held, 0 when not
local memory = redis.call('get', KEYS[3])
if memory then
  return tonumber(memory)
end
local mine, live = taken(ARGV[3], now())
local pool = count(KEYS[1])
local held = pool and live == #ARGV[3] / 16
-- The first write is one that a full Redis allows.
redis.call('del', KEYS[3])
if held or ARGV[4] == '0' then
  drop(mine)
  if pool and #mine > 0 then
    supply(redis.call('incrby', KEYS[1], #mine))
  end
end
return remember(held and 1 or 0)
