-- lock/leave: give back one count of an id that others may share.
-- uses     tell, shared
-- KEYS[1]  lock hash
-- KEYS[2]  channel
-- KEYS[3]  memory of this request: 1 entered, 2 left, 3 nothing to leave
-- KEYS[4]  shared counts
-- ARGV[1]  owner id
-- ARGV[2]  publish command
-- ARGV[3]  memory ttl, ms
-- ARGV[4]  1 to leave only what the memory says was entered
-- ARGV[5]  ttl, ms, if the key has none
-- returns  1 when a count was given back, 0 when there was none
local hash, id, shared = KEYS[1], ARGV[1], KEYS[4]
local memory = redis.call('get', KEYS[3])
if memory == '2' then
  return 1
elseif memory == '3' then
  return 0
end
local count = tonumber(redis.call('hget', hash, id))
if not count or (ARGV[4] == '1' and not memory) then
  redis.call('del', KEYS[3])
  redis.call('set', KEYS[3], '3', 'px', ARGV[3])
  return 0
end
-- In both branches the first write is one that a full Redis allows.
if count > 1 then
  local ttl = redis.call('pttl', hash)
  redis.call('pexpire', hash, ttl > 0 and ttl or ARGV[5])
  redis.call('hincrby', hash, id, -1)
else
  redis.call('del', hash)
  tell(ARGV[2])
end
unshare(shared, id)
redis.call('set', KEYS[3], '2', 'px', ARGV[3])
return 1
