-- permitsemaphore/add: add permits, or take some away; a TTL stays.
-- uses     lib/acl, lib/limit, lib/number, lib/publish_permits, lib/remember
-- KEYS[1]  permits_key: free permits
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- KEYS[4]  leases
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- ARGV[3]  more (number): how many to add
-- returns  change: 1
local permits_key, channel, memory_key, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, memory_ttl_ms, more = ARGV[1], ARGV[2], ARGV[3]

if redis.call('exists', memory_key) == 1 then
  return 1
end
local acquired = redis.call('zcard', leases) -- fails for a key of another type
local free = read_number(permits_key)
local known = tonumber(more) > 0 and free and free + acquired or free or 0
local refusal = beyond_limit(known, more)
  or tonumber(more) > 0 and publish_denied(publish, channel)
if refusal then
  return refusal
end
redis.call('incrby', permits_key, more)
if not free then
  redis.call('del', leases)
end
remember(memory_key, 1, memory_ttl_ms)
if tonumber(more) > 0 then
  publish_permits(publish, channel, tonumber(more))
end
return 1
