-- semaphore/acquire: take permits, all or none.
-- uses     channel, count
-- KEYS[1]  permits left
-- KEYS[2]  channel on which the release will be told
-- KEYS[3]  memory of this acquisition: 1 taken, 2 given back, 3 never to be taken
-- ARGV[1]  publish command
-- ARGV[2]  how long what was taken is remembered, ms
-- ARGV[3]  wanted permits, at least 1
-- returns  {1, permits left} when taken, {0, permits left} when there are too few; "over" when this acquisition has ended
local memory = redis.call('get', KEYS[3])
if memory and memory ~= '1' then
  return 'over'
end
local left = count(KEYS[1]) or 0
if memory then
  return {1, left}
end
if left < tonumber(ARGV[3]) then
  return {0, left}
end
local denied = may_publish(ARGV[1], KEYS[2])
if denied then
  return denied
end
left = redis.call('decrby', KEYS[1], ARGV[3])
redis.call('set', KEYS[3], '1', 'px', ARGV[2])
return {1, left}
