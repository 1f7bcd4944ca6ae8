-- permitsemaphore/add: more permits, or fewer; a ttl stays.
-- uses     count, remember, supply
-- KEYS[1]  free permits
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- KEYS[4]  leases
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- ARGV[3]  how many more
-- returns  1
if redis.call('exists', KEYS[3]) == 1 then
  return 1
end
redis.call('zcard', KEYS[4]) -- what are no leases must not be deleted
local pool = count(KEYS[1])
redis.call('incrby', KEYS[1], ARGV[3])
if not pool then
  redis.call('del', KEYS[4])
end
remember(1)
if tonumber(ARGV[3]) > 0 then
  supply(tonumber(ARGV[3]))
end
return 1
