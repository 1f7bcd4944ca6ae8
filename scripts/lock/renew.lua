-- lock/renew: extend many locks, each for its owner; a longer TTL stays.
-- uses     typed
-- KEYS[1..]  lock hashes
-- ARGV[1..]  owner id and ttl, ms, of each
-- returns    for each, 1, or 0 when the owner does not hold the lock any more; so if the key holds another type
local kept = {}
for i, key in ipairs(KEYS) do
  local owner, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  kept[i] = typed('hash', 'hexists', key, owner) or 0
  if kept[i] == 1 and redis.call('pttl', key) < tonumber(ttl) then
    redis.call('pexpire', key, ttl)
  end
end
return kept
