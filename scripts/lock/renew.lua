-- lock/renew: keep many locks, each for its owner; a longer ttl stays.
-- KEYS[1..]  lock hashes
-- ARGV[1..]  owner id and ttl, ms, of each
-- returns    for each, 1, or 0 when the lock is not this owner's any more
local kept = {}
for i, key in ipairs(KEYS) do
  local owner, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  kept[i] = redis.call('hexists', key, owner)
  if kept[i] == 1 and redis.call('pttl', key) < tonumber(ttl) then
    redis.call('pexpire', key, ttl)
  end
end
return kept
