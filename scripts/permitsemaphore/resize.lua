-- permitsemaphore/resize: have that many permits in all. With more of them taken, what is free goes below 0 until enough have come back.
-- uses     count, remember, supply
-- KEYS[1]  free permits
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- KEYS[4]  leases
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- ARGV[3]  permits in all
-- returns  1
if redis.call('exists', KEYS[3]) == 1 then
  return 1
end
local held, free = redis.call('zcard', KEYS[4]), count(KEYS[1])
local more = free and ARGV[3] - (free + held)
if not free then
  redis.call('set', KEYS[1], ARGV[3])
  redis.call('del', KEYS[4])
elseif more ~= 0 then
  redis.call('incrby', KEYS[1], more)
end
remember(1)
if more ~= 0 then
  supply(tonumber(ARGV[3]))
end
return 1
