-- lock/acquire_shared: acquire the lock, or one more count, for an owner id that may be shared.
-- uses     lib/acl, lib/extend, lib/holder, lib/primary, lib/shared_counts, lib/token
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: on which the release will be published
-- KEYS[3]  memory_key: of this acquisition's release; exists if a late copy must not acquire
-- KEYS[4]  shared_counts
-- KEYS[5]  not used
-- KEYS[6]  token_key (optional): fencing token, for a fenced lock only
-- ARGV[1]  owner (text): id
-- ARGV[2]  ttl_ms (ms)
-- ARGV[3]  publish (command)
-- ARGV[4]  refuse_second (flag): refuse a second count
-- ARGV[5]  is_nested (flag): in a hold with the same id, which must still have the lock
-- returns  acquired:
--          0 when acquired, for a fenced lock the token, as text;
--          {holder's pttl, holder} when somebody else holds the lock, '' for a read-write lock;
--          "over" when this acquisition has ended;
--          "again" when a second count is refused;
--          "lost" when the outer hold is gone
local lock_hash, channel, memory_key, shared_counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token_key = KEYS[6]
local owner, ttl_ms, publish = ARGV[1], ARGV[2], ARGV[3]
local refuse_second, is_nested = ARGV[4] == '1', ARGV[5] == '1'

if redis.call('exists', memory_key) == 1 then
  return 'over'
end
local holder, foreign_data = holder_of(lock_hash)
if foreign_data then
  return foreign_data
end
local held = holder == owner
-- Not before an acquisition: after a write that a full Redis allows, the others pass, too.
if not held and (is_nested or holder) then
  require_primary(memory_key)
  if is_nested then
    return 'lost'
  end
  return {redis.call('pttl', lock_hash), holder}
end
local token, unusable = 0, nil
if token_key and held then
  token, unusable = last_token(token_key, '1')
  if unusable then
    return unusable
  end
end
if held and has_shared_count(shared_counts, owner, memory_key) then -- a copy of this request
  require_primary(memory_key)
  renew(lock_hash, ttl_ms)
  extend(shared_counts, ttl_ms)
else
  if held and refuse_second then
    require_primary(memory_key)
    return 'again'
  end
  local denied = publish_denied(publish, channel)
  if denied then
    return denied
  end
  if token_key and not held then
    token, unusable = reserve_tokens(token_key, '1')
    if unusable then
      return unusable
    end
  end
  add_shared_count(shared_counts, owner, memory_key, not held, ttl_ms)
  redis.call('hincrby', lock_hash, owner, 1)
  extend(lock_hash, ttl_ms)
end
return token
