-- semaphore/list: read a number, and whether it counts permits with leases.
-- uses     lib/primary
-- KEYS[1]  number_key
-- KEYS[2]  leases (optional): missing if they are in another cluster slot
-- returns  {kind text, pttl number, number text} or {}:
--          the number as text;
--          an empty list if there is no whole number. The kind is "permits" if there are leases,
--            else "integer": the key of a semaphore or a latch looks like any other number
local number_key, leases = KEYS[1], KEYS[2]

-- The beginning is enough: a long text is no number.
local value = redis.call('getrange', number_key, 0, 20)
if not string.match(value, '^-?%d+$') then
  return {}
end
local kind = 'integer'
if leases and redis.call('type', leases).ok == 'zset' then
  kind = 'permits'
elseif leases then
  prefer_primary(leases)
end
return {kind, redis.call('pttl', number_key), value}
