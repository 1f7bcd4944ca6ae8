-- rwlock/recount: set the count of a reader's holds that nest, under an id that belongs to them alone.
-- uses     readers
-- KEYS[1]  lock hash
-- KEYS[2]  what the keys of readers' holds begin with
-- ARGV[1]  owner id
-- ARGV[2]  wanted count, at least 1
-- ARGV[3]  ttl of one more, ms; 0 when one has left
-- returns  1, or 0 when the reader is dead
local hash, prefix, id, wanted, ttl = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local count = tonumber(redis.call('hget', hash, id) or 0)
local left = life(prefix, id, count)
if left == 0 then
  return 0
end
if ttl ~= '0' then
  if wanted > count then
    redis.call('set', hold_key(prefix, id, wanted), '1', 'px', ttl)
    redis.call('hset', hash, id, wanted)
  end
  raise(hold_key(prefix, id, wanted), ttl)
  raise(hash, ttl)
  return 1
end
if wanted < count then
  -- The first write is one that a full Redis allows.
  for n = wanted + 1, count do
    redis.call('del', hold_key(prefix, id, n))
  end
  if redis.call('pttl', hold_key(prefix, id, wanted)) < left then -- what stays keeps the longest lease
    redis.call('set', hold_key(prefix, id, wanted), '1', 'px', left)
  end
  redis.call('hset', hash, id, wanted)
end
return 1
