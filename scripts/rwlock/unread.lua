-- rwlock/unread: give back what a reader has; the last one frees the lock.
-- uses     readers, shared
-- KEYS[1]  lock hash
-- KEYS[2]  channel of releases
-- KEYS[3]  memory of this request: 1 entered, 2 left, 3 never to enter
-- KEYS[4]  claim of a waiting writer
-- KEYS[5]  shared counts
-- ARGV[1]  owner id
-- ARGV[2]  publish command
-- ARGV[3]  memory ttl, ms
-- ARGV[4]  1 to give back one count, a shared one if there is one; 0 to give back all that are not shared
-- ARGV[5]  1 to give back only what the memory says was entered
-- returns  1 when it was held, 0 when not
local hash, prefix, id, shared = KEYS[1], prefix_of(KEYS[1]), ARGV[1], ARGV[4] == '1'
local memory = redis.call('get', KEYS[3])
if memory == '2' or memory == '3' then
  return memory == '2' and 1 or 0
end
local count = tonumber(redis.call('hget', hash, id) or 0)
local others = shared_of(KEYS[5], id, count)
local own = shared and math.min(count, 1) or count - others
if own == 0 or (ARGV[5] == '1' and shared and not memory) then
  if count == 0 then
    redis.call('hdel', KEYS[5], id)
  end
  redis.call('del', KEYS[3])
  redis.call('set', KEYS[3], '3', 'px', ARGV[3])
  return 0
end
local left = life(prefix, id, count)
-- In both branches the first write is one that a full Redis allows.
if left > 0 and own < count then
  shrink(hash, prefix, id, count, count - own, left)
  if shared then
    unshare(KEYS[5], id)
  end
else
  bury(hash, prefix, id, count)
  redis.call('hdel', KEYS[5], id)
  if redis.call('hget', hash, 'mode') ~= 'write' and not settle(hash, prefix, left) then
    redis.call(ARGV[2], KEYS[2], '0')
  end
end
redis.call('set', KEYS[3], left > 0 and '2' or '3', 'px', ARGV[3])
return left > 0 and 1 or 0
