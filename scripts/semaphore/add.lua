-- semaphore/add: add permits, or take some away; a TTL stays.
-- uses     lib/acl, lib/epoch, lib/limit, lib/number, lib/publish_permits, lib/remember
-- KEYS[1]  permits_key: permits left
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- KEYS[4]  epoch_key: of the semaphore
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- ARGV[3]  more (number): how many to add
-- returns  change: 1
local permits_key, channel, memory_key, epoch_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, memory_ttl_ms, more = ARGV[1], ARGV[2], ARGV[3]

if redis.call('exists', memory_key) == 1 then
  return 1
end
local before = read_number(permits_key)
local refusal = beyond_limit(before or 0, more) or publish_denied(publish, channel)
if refusal then
  return refusal
end
local left = redis.call('incrby', permits_key, more)
if not before then
  new_epoch(epoch_key, memory_key)
end
remember(memory_key, 1, memory_ttl_ms)
publish_permits(publish, channel, left)
return 1
