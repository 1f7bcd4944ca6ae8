-- lock/acquire: take the lock for an id that belongs to one acquisition alone.
-- uses     channel
-- KEYS[1]  lock hash
-- KEYS[2]  channel on which the release will be told
-- KEYS[3]  memory of this id's release
-- ARGV[1]  owner id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- returns  nil when ours; {holder's pttl, holder} when another's; "over" when this id has been released already
if redis.call('exists', KEYS[3]) == 1 then
  return 'over'
end
if redis.call('exists', KEYS[1]) == 1 then
  if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
    redis.call('pexpire', KEYS[1], ARGV[2])
    return nil
  end
  return {redis.call('pttl', KEYS[1]), redis.call('hkeys', KEYS[1])[1]}
end
local denied = may_publish(ARGV[3], KEYS[2])
if denied then
  return denied
end
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], ARGV[2])
return nil
