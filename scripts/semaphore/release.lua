-- semaphore/release: give back the permits of one acquisition, once, and see that a late copy of it takes nothing.
-- uses     count, supply
-- KEYS[1]  permits left
-- KEYS[2]  channel
-- KEYS[3]  memory of the acquisition: 1 taken, 2 given back, 3 never to be taken
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- ARGV[3]  its permits
-- ARGV[4]  1 to give back only what the memory says was taken
-- returns  1 when given back, 0 when there was nothing to give back, or nowhere
local memory = redis.call('get', KEYS[3])
if memory == '2' then
  return 1
elseif memory == '3' then
  return 0
end
local taken = (memory or ARGV[4] == '0') and count(KEYS[1])
-- The first write is one that a full Redis allows.
redis.call('del', KEYS[3])
if not taken then
  redis.call('set', KEYS[3], '3', 'px', ARGV[2])
  return 0
end
local left = redis.call('incrby', KEYS[1], ARGV[3])
redis.call('set', KEYS[3], '2', 'px', ARGV[2])
supply(left)
return 1
