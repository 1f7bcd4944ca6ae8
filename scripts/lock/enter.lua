-- lock/enter: take the lock, or one more count of it, for an id that others may share.
-- uses     channel
-- KEYS[1]  lock hash
-- KEYS[2]  channel on which the release will be told
-- KEYS[3]  memory of this acquisition: 1 entered, 2 left, 3 never to enter
-- KEYS[4]  shared counts
-- KEYS[5]  fencing token, of a fenced lock only
-- ARGV[1]  owner id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  memory ttl, ms
-- ARGV[5]  1 to refuse a second count
-- returns  the token, or 0, when ours; {holder's pttl, holder} when another's; "over" when this acquisition has ended; "again" when refused a count
local memory = redis.call('get', KEYS[3])
if memory == '2' or memory == '3' then
  return 'over'
end
local held = redis.call('hexists', KEYS[1], ARGV[1]) == 1
if not held and redis.call('exists', KEYS[1]) == 1 then
  return {redis.call('pttl', KEYS[1]), redis.call('hkeys', KEYS[1])[1]}
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
  redis.call('hincrby', KEYS[1], ARGV[1], 1)
  redis.call('set', KEYS[3], '1', 'px', ARGV[4])
end
if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('pexpire', KEYS[1], ARGV[2])
end
return KEYS[5] and tonumber(redis.call('get', KEYS[5]) or 0) or 0
