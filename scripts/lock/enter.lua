-- lock/enter: take the lock, or one more count of it, for an id that others may share.
-- uses     channel, shared
-- KEYS[1]  lock hash
-- KEYS[2]  channel on which the release will be published
-- KEYS[3]  memory of this acquisition: 1 entered, 2 left, 3 must not enter
-- KEYS[4]  shared counts
-- KEYS[5]  fencing token, of a fenced lock only
-- ARGV[1]  owner id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  memory ttl, ms
-- ARGV[5]  1 to refuse a second count
-- ARGV[6]  1 if made under a hold of the same id, which must still have the lock
-- returns  the token, or 0, when acquired; {holder's pttl, holder} when somebody else holds the lock; "over" when this acquisition
--          has ended; "again" when a second count is refused; "lost" when the outer hold is gone
local hash, id, ttl, shared = KEYS[1], ARGV[1], ARGV[2], KEYS[4]
local memory = redis.call('get', KEYS[3])
if memory == '2' or memory == '3' then
  return 'over'
end
local held = redis.call('hexists', hash, id) == 1
if not held then
  if ARGV[6] == '1' then
    return 'lost'
  end
  if redis.call('exists', hash) == 1 then
    return {redis.call('pttl', hash), redis.call('hkeys', hash)[1]}
  end
end
if not (memory and held) then
  if held and ARGV[5] == '1' then
    return 'again'
  end
  local denied = may_publish(ARGV[3], KEYS[2])
  if denied then
    return denied
  end
  if KEYS[5] and not held then
    redis.call('incr', KEYS[5])
  end
  redis.call('hincrby', hash, id, 1)
  share(shared, id, not held, ttl)
  redis.call('set', KEYS[3], '1', 'px', ARGV[4])
end
if redis.call('pttl', hash) < tonumber(ttl) then
  redis.call('pexpire', hash, ttl)
end
return KEYS[5] and tonumber(redis.call('get', KEYS[5]) or 0) or 0
