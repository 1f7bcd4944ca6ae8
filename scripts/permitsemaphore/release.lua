-- permitsemaphore/release: give back permits, or hand them on.
-- An heir waits for as many or fewer and gets them at once. A late copy of their acquisition takes nothing.
-- uses     count, permits, remember, supply
-- KEYS[1]  free permits
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- KEYS[4]  leases
-- KEYS[5]  memory of the heir's release, if there is an heir
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- ARGV[3]  ids of 16 bytes each
-- ARGV[4]  1 to give back all or none, 0 to give back what is left of them
-- ARGV[5]  the heir's ids; none: nobody is to inherit
-- ARGV[6]  the heir's ttl, ms
-- returns  0 when not all were held; {free permits} when the heir has its own now; else 1 and how many heard of the release
local at, heir = now(), ARGV[5]
local pool = count(KEYS[1])
local memory = redis.call('get', KEYS[3])
if memory then
  if heir and memory == '1' and #taken(heir, at) == #heir / 16 then -- a copy: the heir counts its leases from the one that is answered
    lease(heir, at + 1 + ARGV[6])
    return {pool or 0}
  end
  return tonumber(memory)
end
local mine, live = taken(ARGV[3], at)
local held = pool and live == #ARGV[3] / 16
-- The first write is one that a full Redis allows.
redis.call('del', KEYS[3])
-- An heir that has its own already, or has given up, inherits nothing.
local inherits = held and heir and redis.call('exists', KEYS[5]) == 0 and #taken(heir, at) == 0
local heard = 0
if held or ARGV[4] == '0' then
  drop(mine)
  local back = #mine
  if inherits then
    lease(heir, at + 1 + ARGV[6])
    back = back - #heir / 16
  end
  if pool and back > 0 then
    pool = redis.call('incrby', KEYS[1], back)
    heard = supply(pool) or 0
  end
end
remember(held and 1 or 0)
return inherits and {pool} or (held and 1 + heard or 0)
