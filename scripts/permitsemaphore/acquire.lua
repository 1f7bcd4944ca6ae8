-- permitsemaphore/acquire: take permits, all or none, for ids that belong to one acquisition alone.
-- uses     channel, count, permits
-- KEYS[1]  free permits
-- KEYS[2]  channel on which the release will be told
-- KEYS[3]  memory of this acquisition's release
-- KEYS[4]  leases
-- ARGV[1]  publish command
-- ARGV[2]  how many ended leases to collect at the most
-- ARGV[3]  ids of 16 bytes each
-- ARGV[4]  ttl, ms
-- returns  {1, free permits} when taken; {0, free permits, ms until a lease ends} when there are too few: -1 when none will end, 0 when more
--          are to be collected; "over" when this acquisition has been released already
if redis.call('exists', KEYS[3]) == 1 then
  return 'over'
end
local at, free, wanted = now(), count(KEYS[1]), #ARGV[3] / 16
local ending = at + 1 + ARGV[4]
local mine = taken(ARGV[3], at)
if not free then
  return {0, 0, -1}
end
if #mine == wanted then
  lease(ARGV[3], ending)
  return {1, free}
end
if #mine > 0 then -- an earlier copy's, whose leases have ended and are being collected: it begins again
  drop(mine)
  free = redis.call('incrby', KEYS[1], #mine)
end
local ended = math.min(redis.call('zcount', KEYS[4], '-inf', at), tonumber(ARGV[2]))
local enough = free + ended >= wanted
if enough or ended > 0 then
  local denied = may_publish(ARGV[1], KEYS[2])
  if denied then
    return denied
  end
end
if enough then
  lease(ARGV[3], ending) -- before anything else is written: a full Redis refuses it
end
if ended > 0 then
  redis.call('zrem', KEYS[4], unpack(redis.call('zrangebyscore', KEYS[4], '-inf', at, 'limit', 0, ended)))
  free = redis.call('incrby', KEYS[1], ended)
  if free > 0 then
    redis.call(ARGV[1], KEYS[2], free)
  end
end
if enough then
  free = redis.call('decrby', KEYS[1], wanted)
  -- The leases last as long as the pool.
  local ttl = redis.call('pttl', KEYS[1])
  if ttl > 0 then
    redis.call('pexpire', KEYS[4], ttl)
  else
    redis.call('persist', KEYS[4])
  end
  return {1, free}
end
local first = redis.call('zrange', KEYS[4], 0, 0, 'withscores')[2]
if not first or tonumber(first) == never then
  return {0, free, -1}
end
return {0, free, math.max(tonumber(first) - at, 0)}
