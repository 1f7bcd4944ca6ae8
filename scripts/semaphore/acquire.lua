-- semaphore/acquire: acquire permits, all or none.
-- uses     lib/acl, lib/number
-- KEYS[1]  permits left
-- KEYS[2]  channel on which the release will be published
-- KEYS[3]  memory of this acquisition: 1 acquired, 2 released, 3 must not acquire
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- ARGV[3]  wanted permits, at least 1
-- returns  {1, permits left} when acquired; {0, permits left} when there are too few; {0} when no
--          number is set; "over" when this acquisition has ended
local permits_key, channel, memory_key = KEYS[1], KEYS[2], KEYS[3]
local publish, memory_ttl_ms, wanted = ARGV[1], ARGV[2], ARGV[3]

local memory = redis.call('get', memory_key)
if memory and memory ~= '1' then
  return 'over'
end
local left = read_number(permits_key)
if memory then
  return {1, left or 0}
end
if not left then
  return {0}
end
if left < tonumber(wanted) then
  return {0, left}
end
local denied = publish_denied(publish, channel)
if denied then
  return denied
end
left = redis.call('decrby', permits_key, wanted)
redis.call('set', memory_key, '1', 'px', memory_ttl_ms)
return {1, left}
