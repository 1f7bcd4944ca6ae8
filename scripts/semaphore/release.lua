-- semaphore/release: give back the permits of one acquisition, once, or hand them on.
-- An heir waits for as many or fewer and gets them at once. A late copy of the acquisition takes nothing.
-- uses     count, supply
-- KEYS[1]  permits left
-- KEYS[2]  channel
-- KEYS[3]  memory of the acquisition: 1 taken, 2 given back, 3 never to be taken
-- KEYS[4]  memory of the heir's acquisition, if there is an heir
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- ARGV[3]  its permits
-- ARGV[4]  1 to give back only what the memory says was taken
-- ARGV[5]  the heir's permits; none: nobody is to inherit
-- ARGV[6]  how long what the heir has taken is remembered, ms
-- returns  0 when there was nothing to give back, or nowhere; {permits left} when the heir has its own now; else 1 and how many heard of the
--          release
local memory = redis.call('get', KEYS[3])
if memory == '3' then
  return 0
elseif memory == '2' then
  if KEYS[4] and redis.call('get', KEYS[4]) == '1' then
    return {count(KEYS[1]) or 0}
  end
  return 1
end
local taken = (memory or ARGV[4] == '0') and count(KEYS[1])
-- The first write is one that a full Redis allows.
redis.call('del', KEYS[3])
if not taken then
  redis.call('set', KEYS[3], '3', 'px', ARGV[2])
  return 0
end
local back = ARGV[3]
local inherits = KEYS[4] and redis.call('exists', KEYS[4]) == 0
if inherits then
  redis.call('set', KEYS[4], '1', 'px', ARGV[6])
  back = back - ARGV[5]
end
local left = back == 0 and taken or redis.call('incrby', KEYS[1], back)
redis.call('set', KEYS[3], '2', 'px', ARGV[2])
local heard = back ~= 0 and supply(left) or 0
return inherits and {left} or 1 + heard
