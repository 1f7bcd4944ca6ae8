-- rwlock/recount: set the count of a reader's private holds, which nest. Counts of callers that share the id stay.
-- uses     readers, shared
-- KEYS[1]  lock hash
-- KEYS[2]  shared counts
-- KEYS[3]  latest change of this count that was executed: a late copy of an earlier one does nothing
-- ARGV[1]  owner id
-- ARGV[2]  wanted count, at least 1
-- ARGV[3]  ttl of one more, ms; 0 when one has left
-- ARGV[4]  when one has left: how long the others need, ms; -1 when that is not known and the longest lease is to stay
-- ARGV[5]  number of this change
-- ARGV[6]  memory ttl, ms
-- returns  1, or 0 when the reader is dead
local hash, prefix, id, ttl = KEYS[1], prefix_of(KEYS[1]), ARGV[1], ARGV[3]
local count = tonumber(redis.call('hget', hash, id) or 0)
local left = life(prefix, id, count)
if left == 0 then
  return 0
end
if tonumber(redis.call('get', KEYS[3]) or 0) > tonumber(ARGV[5]) then
  return 1
end
local others = shared_of(KEYS[2], id, count)
local wanted = tonumber(ARGV[2]) + others
if ttl ~= '0' then
  if wanted > count then
    redis.call('set', hold_key(prefix, id, wanted), '1', 'px', ttl)
    redis.call('hset', hash, id, wanted)
  end
  raise(hold_key(prefix, id, wanted), ttl)
  raise(hash, ttl)
else
  redis.call('del', KEYS[3]) -- a full Redis allows what follows
  if wanted < count then
    local need = math.min(tonumber(ARGV[4]), left)
    if need < 0 or others > 0 then
      need = left
    end
    shrink(hash, prefix, id, count, wanted, need)
    if need < left then -- the longer lease leaves with its hold
      for n = 1, wanted do
        local key = hold_key(prefix, id, n)
        if redis.call('pttl', key) > need then
          redis.call('pexpire', key, need)
        end
      end
      if redis.call('hget', hash, 'mode') ~= 'write' then
        settle(hash, prefix, left)
      end
    end
  end
end
redis.call('set', KEYS[3], ARGV[5], 'px', ARGV[6])
return 1
