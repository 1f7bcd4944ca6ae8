-- lock/acquire: take the lock for an id that belongs to one acquisition alone.
-- uses     channel
-- KEYS[1]  lock hash
-- KEYS[2]  channel on which the release will be told
-- KEYS[3]  given back: set of the places of those acquisitions that were, each also with a minus if it held nothing then
-- KEYS[4]  shared counts
-- KEYS[5]  fencing token, of a fenced lock only
-- ARGV[1]  owner id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  this acquisition's place in the set
-- returns  the token, or 0, when ours; {holder's pttl, holder} when another's; "over" when this acquisition has been given back already
if redis.call('sismember', KEYS[3], ARGV[4]) == 1 then
  return 'over'
end
if redis.call('exists', KEYS[1]) == 0 then
  local denied = may_publish(ARGV[3], KEYS[2])
  if denied then
    return denied
  end
  local token = KEYS[5] and redis.call('incr', KEYS[5])
  redis.call('hset', KEYS[1], ARGV[1], 1)
  redis.call('pexpire', KEYS[1], ARGV[2])
  return token or 0
end
if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
  -- A copy, or an heir that asks: the lock may have been extended since.
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('pexpire', KEYS[1], ARGV[2])
  end
  return KEYS[5] and tonumber(redis.call('get', KEYS[5]) or 0) or 0
end
return {redis.call('pttl', KEYS[1]), redis.call('hkeys', KEYS[1])[1]}
