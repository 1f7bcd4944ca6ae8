-- rwlock/readadopt: put a fresh id in the place of a reader's, with all its holds.
-- uses     channel, readers
-- KEYS[1]  lock hash
-- KEYS[2]  channel of releases
-- KEYS[3]  memory of this request: 1 entered, 2 left, 3 never to enter
-- KEYS[4]  claim of a waiting writer
-- KEYS[5]  shared counts
-- ARGV[1]  fresh id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  the reader's id
-- returns  the counts taken over, 0 when that reader has none, -1 when it writes too
local hash, prefix, fresh, ttl, id = KEYS[1], prefix_of(KEYS[1]), ARGV[1], ARGV[2], ARGV[4]
if redis.call('exists', KEYS[3]) == 1 then
  return 0
end
local count = redis.call('hget', hash, fresh)
if count then -- this is a repetition
  for n = 1, tonumber(count) do
    raise(hold_key(prefix, fresh, n), ttl)
  end
  raise(hash, ttl)
  return tonumber(count)
end
count = redis.call('hget', hash, id)
local left = life(prefix, id, count)
if left == 0 then
  return 0
end
if redis.call('hget', hash, 'mode') == 'write' then
  return -1
end
local denied = may_publish(ARGV[3], KEYS[2])
if denied then
  return denied
end
for n = 1, tonumber(count) do
  redis.call('set', hold_key(prefix, fresh, n), '1', 'px', ttl)
end
redis.call('hset', hash, fresh, count)
bury(hash, prefix, id, count)
redis.call('hdel', KEYS[5], id)
raise(hash, ttl)
settle(hash, prefix, left)
return tonumber(count)
