-- rwlock/write: take the lock for writing, or claim it while readers have it.
-- uses     channel, readers, shared
-- KEYS[1]  lock hash
-- KEYS[2]  channel of releases
-- KEYS[3]  memory of this request: 1 entered, 2 left, 3 never to enter
-- KEYS[4]  claim of a waiting writer
-- KEYS[5]  shared counts
-- ARGV[1]  owner id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  memory ttl, ms, when others may share the id; 0 when it belongs to this acquisition alone
-- ARGV[5]  1 to refuse a second count
-- ARGV[6]  how long a claim stands, ms; 0 to claim nothing
-- ARGV[7]  1 when it is made under a hold of the same id: then it is "lost" if that id does not write
-- returns  0 when ours; {pttl, holder} when another's, with a third element when claimed; "over" when this acquisition has ended; "again"
--          when refused a count, or when its own id reads; "lost" when the hold that it is made under is
local hash, id, ttl, shared = KEYS[1], ARGV[1], ARGV[2], ARGV[4] ~= '0'
local field = id .. ':write'
local memory = redis.call('get', KEYS[3])
if memory == '2' or memory == '3' then
  return 'over'
end
local held = redis.call('hexists', hash, field) == 1
if held and (memory or not shared) then -- this is a repetition
  raise(hash, ttl)
  return 0
end
if not held and ARGV[7] == '1' then
  return 'lost'
end
if not held and redis.call('exists', hash) == 1 then
  if redis.call('hget', hash, 'mode') ~= 'read' then
    return {redis.call('pttl', hash), writer_of(hash) or ''}
  end
  if life(prefix_of(hash), id, redis.call('hget', hash, id)) > 0 then
    return 'again'
  end
  if ARGV[6] == '0' then
    return {redis.call('pttl', hash), ''}
  end
  redis.call('set', KEYS[4], KEYS[3], 'px', ARGV[6])
  return {redis.call('pttl', hash), '', 1}
end
if held and ARGV[5] == '1' then
  return 'again'
end
local denied = may_publish(ARGV[3], KEYS[2]) or may_hold(prefix_of(hash), id)
if denied then
  return denied
end
redis.call('hset', hash, 'mode', 'write')
redis.call('hincrby', hash, field, 1)
raise(hash, ttl)
redis.call('del', KEYS[4])
if shared then
  share(KEYS[5], field, not held, ttl)
  redis.call('set', KEYS[3], '1', 'px', ARGV[4])
end
return 0
