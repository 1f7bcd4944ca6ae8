-- lock/leave: give back one count of an id that others may share.
-- uses     tell
-- KEYS[1]  lock hash
-- KEYS[2]  channel
-- KEYS[3]  memory of this request: 1 entered, 2 left, 3 nothing to leave
-- KEYS[4]  shared counts: hash of owner ids, each with how many of its counts belong to WithOwner
--          callers
-- ARGV[1]  owner id
-- ARGV[2]  publish command
-- ARGV[3]  memory ttl, ms
-- ARGV[4]  1 to leave only what the memory says was entered
-- ARGV[5]  ttl, ms, if the key has none
-- returns  1 when a count was given back, 0 when there was none
local memory = redis.call('get', KEYS[3])
if memory == '2' then
  return 1
elseif memory == '3' then
  return 0
end
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 or (ARGV[4] == '1' and not memory) then
  redis.call('del', KEYS[3])
  redis.call('set', KEYS[3], '3', 'px', ARGV[3])
  return 0
end
local others = tonumber(redis.call('hget', KEYS[4], ARGV[1]) or 0)
-- In both branches the first write is one that a full Redis allows.
if tonumber(redis.call('hget', KEYS[1], ARGV[1])) > 1 then
  local ttl = redis.call('pttl', KEYS[1])
  redis.call('pexpire', KEYS[1], ttl > 0 and ttl or ARGV[5])
  redis.call('hincrby', KEYS[1], ARGV[1], -1)
  if others > 1 then
    redis.call('hincrby', KEYS[4], ARGV[1], -1)
    redis.call('pexpire', KEYS[4], 86400000)
  else
    redis.call('hdel', KEYS[4], ARGV[1])
  end
else
  redis.call('hdel', KEYS[4], ARGV[1])
  redis.call('del', KEYS[1])
  tell(ARGV[2])
end
redis.call('set', KEYS[3], '2', 'px', ARGV[3])
return 1
