-- semaphore/drain: take all permits that are left; a ttl stays.
-- uses     count, remember
-- KEYS[1]  permits left
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- returns  how many; below 0 when as many had been missing
local memory = redis.call('get', KEYS[3])
if memory then
  return tonumber(memory)
end
local left = count(KEYS[1]) or 0
if left ~= 0 then
  redis.call('decrby', KEYS[1], left)
end
return remember(left)
