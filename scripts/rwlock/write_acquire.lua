-- rwlock/write_acquire: acquire the lock for writing, or claim it while there are readers.
-- uses     lib/acl, rwlock/hold_keys
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: of releases
-- KEYS[3]  memory_key: of this request; exists if a late copy must not acquire
-- KEYS[4]  claim_key: of a waiting writer; its value is the memory key of the writer's request
-- KEYS[5]  shared_counts
-- KEYS[6]  mark (optional): of clients that poll, if this one does
-- ARGV[1]  owner (text): id
-- ARGV[2]  ttl_ms (ms)
-- ARGV[3]  publish (command)
-- ARGV[4]  is_shared (flag): others may share the id; else it belongs to this acquisition alone
-- ARGV[5]  refuse_second (flag): refuse a second count
-- ARGV[6]  claim_ttl_ms (ms): 0 to claim nothing
-- ARGV[7]  is_nested (flag): in a hold with the same id, which must still be the writer
-- ARGV[8]  mark_ttl_ms (ms, optional)
-- returns  acquired {claimed flag}: 0 when acquired; {pttl, holder} when somebody else holds the
--          lock, with a third element when claimed; "over" when this acquisition has ended; "again"
--          when a second count is refused, or its own id is a reader; "lost" when the outer hold is
--          gone
local lock_hash, channel, memory_key, claim_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local shared_counts, mark = KEYS[5], KEYS[6]
local owner, ttl_ms, publish = ARGV[1], ARGV[2], ARGV[3]
local is_shared, refuse_second = ARGV[4] ~= '0', ARGV[5] == '1'
local claim_ttl_ms, is_nested, mark_ttl_ms = ARGV[6], ARGV[7] == '1', ARGV[8]

local prefix, field = hold_prefix(lock_hash), owner .. ':write'
-- One call for the usual case: the lock is free, and this acquisition was not released.
if not is_shared and not is_nested
  and redis.call('exists', lock_hash, memory_key, claim_key) == 0 then
  local denied = publish_denied(publish, channel) or hold_keys_denied(prefix, owner)
  if denied then
    return denied
  end
  redis.call('hset', lock_hash, 'mode', 'write', field, 1)
  redis.call('pexpire', lock_hash, ttl_ms)
  return 0
end

-- uses     lib/extend, lib/polls, lib/shared_counts, rwlock/foreign, rwlock/readers

if redis.call('get', memory_key) then
  return 'over'
end
local held = redis.call('hexists', lock_hash, field) == 1
if held and (not is_shared or has_shared_count(shared_counts, field, memory_key)) then
  extend(lock_hash, ttl_ms) -- a copy of this request
  if is_shared then
    extend(shared_counts, ttl_ms)
  end
  return 0
end
if not held and is_nested then
  return 'lost'
end
local is_taken = redis.call('exists', lock_hash) == 1
local mode = is_taken and redis.call('hget', lock_hash, 'mode')
local foreign_data, entries
if is_taken then
  foreign_data, entries = foreign_to_mode(lock_hash, mode)
end
if foreign_data then
  return foreign_data
end
if not held and is_taken then
  if mark then
    mark_poll(mark, mark_ttl_ms)
  end
  if mode ~= 'read' then
    return {redis.call('pttl', lock_hash), writer_of(lock_hash, entries) or ''}
  end
  -- A reader that waits to write would wait for itself.
  if reader_ttl(prefix, owner, redis.call('hget', lock_hash, owner)) > 0 then
    return 'again'
  end
  if claim_ttl_ms == '0' then
    return {redis.call('pttl', lock_hash), ''}
  end
  redis.call('get', claim_key) -- fails for a key of another type, which must not be replaced
  redis.call('set', claim_key, memory_key, 'px', claim_ttl_ms)
  return {redis.call('pttl', lock_hash), '', 1}
end
if held and refuse_second then
  return 'again'
end
local denied = publish_denied(publish, channel) or hold_keys_denied(prefix, owner)
if denied then
  return denied
end
redis.call('get', claim_key) -- fails for a key of another type, which must not be deleted
if is_shared then
  add_shared_count(shared_counts, field, memory_key, not held, ttl_ms)
end
redis.call('hset', lock_hash, 'mode', 'write')
redis.call('hincrby', lock_hash, field, 1)
extend(lock_hash, ttl_ms)
redis.call('del', claim_key)
return 0
