-- rwlock/read: take the lock for reading.
-- uses     channel, readers
-- KEYS[1]  lock hash
-- KEYS[2]  channel of releases
-- KEYS[3]  memory of this request: 1 entered, 2 left, 3 never to enter
-- KEYS[4]  claim of a waiting writer
-- KEYS[5]  what the keys of readers' holds begin with
-- ARGV[1]  owner id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  memory ttl, ms, when others may share the id; 0 when it belongs to this acquisition alone
-- ARGV[5]  1 to refuse a second count
-- returns  0 when ours; {pttl of what is in the way, writer} when refused; "over" when this acquisition has ended; "again" when refused a count
local hash, prefix, id, ttl, shared = KEYS[1], KEYS[5], ARGV[1], ARGV[2], ARGV[4] ~= '0'
local memory = redis.call('get', KEYS[3])
if memory == '2' or memory == '3' then
  return 'over'
end
local count = redis.call('hget', hash, id)
local alive = life(prefix, id, count) > 0
if alive and (memory or not shared) then -- this is a repetition
  raise(hold_key(prefix, id, count), ttl)
  raise(hash, ttl)
  return 0
end
local mode = redis.call('hget', hash, 'mode')
local own = alive or (mode == 'write' and redis.call('hexists', hash, id .. ':write') == 1)
if not own then
  if mode ~= 'read' and redis.call('exists', hash) == 1 then
    return {redis.call('pttl', hash), writer_of(hash) or ''}
  end
  local claimed = redis.call('pttl', KEYS[4])
  if claimed > 0 then -- a writer waits: who is not in stays out
    return {claimed, ''}
  end
elseif ARGV[5] == '1' then
  return 'again'
end
local denied = may_publish(ARGV[3], KEYS[2])
if denied then
  return denied
end
local n = alive and count + 1 or 1
redis.call('set', hold_key(prefix, id, n), '1', 'px', ttl)
if not mode then
  redis.call('hset', hash, 'mode', 'read')
end
redis.call('hset', hash, id, n)
raise(hash, ttl)
if shared then
  redis.call('set', KEYS[3], '1', 'px', ARGV[4])
end
return 0
