-- semaphore/add: more permits, or fewer; a ttl stays.
-- uses     remember, supply
-- KEYS[1]  permits left
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- ARGV[3]  how many more
-- returns  1
if redis.call('exists', KEYS[3]) == 1 then
  return 1
end
local left = redis.call('incrby', KEYS[1], ARGV[3])
remember(1)
supply(left)
return 1
