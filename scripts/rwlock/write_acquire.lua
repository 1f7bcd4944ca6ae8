-- rwlock/write_acquire: acquire the lock for writing, or claim it while there are readers.
-- uses     lib/acl, rwlock/hold_keys
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: of releases
-- KEYS[3]  memory_key: of this request; exists if a late copy must not acquire
-- KEYS[4]  claim_key: of a waiting writer; its value is the memory key of the writer's request, or
--          see rwlock/turns
-- KEYS[5]  shared_counts
-- KEYS[6]  turns: of clients that wait, see rwlock/turns
-- KEYS[7]  mark (optional): of clients that poll, if this one does
-- ARGV[1]  owner (text): id
-- ARGV[2]  ttl_ms (ms)
-- ARGV[3]  publish (command)
-- ARGV[4]  is_shared (flag): others may share the id; else it belongs to this acquisition alone
-- ARGV[5]  refuse_second (flag): refuse a second count
-- ARGV[6]  claim_ttl_ms (ms): 0 to claim nothing
-- ARGV[7]  is_nested (flag): in a hold with the same id, which must still be the writer
-- ARGV[8]  client (text): an id that is new after each restart
-- ARGV[9]  waits (flag): the client waits for messages
-- ARGV[10] mark_ttl_ms (ms, optional)
-- returns  acquired {claimed flag}:
--          0 when acquired;
--          {pttl, holder} when somebody else holds the lock, with a third element when claimed;
--          "over" when this acquisition has ended;
--          "again" when a second count is refused, or its own id is a reader;
--          "lost" when the outer hold is gone
local lock_hash, channel, memory_key, claim_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local shared_counts, turns, mark = KEYS[5], KEYS[6], KEYS[7]
local owner, ttl_ms, publish = ARGV[1], ARGV[2], ARGV[3]
local is_shared, refuse_second = ARGV[4] ~= '0', ARGV[5] == '1'
local claim_ttl_ms, is_nested = ARGV[6], ARGV[7] == '1'
local client, waits, mark_ttl_ms = ARGV[8], ARGV[9] == '1', ARGV[10]

local prefix, field = hold_prefix(lock_hash), owner .. ':write'
-- One call for the usual case: the lock is free, and this acquisition was not released.
if not is_shared and not is_nested
  and redis.call('exists', lock_hash, memory_key, claim_key, turns) == 0 then
  local denied = publish_denied(publish, channel) or hold_keys_denied(prefix, owner)
  if denied then
    return denied
  end
  redis.call('hset', lock_hash, 'mode', 'write', field, 1)
  redis.call('pexpire', lock_hash, ttl_ms)
  return 0
end

-- uses     lib/extend, lib/polls, lib/primary, lib/shared_counts
-- uses     rwlock/foreign, rwlock/readers, rwlock/turns

if redis.call('get', memory_key) then
  return 'over'
end
-- require_primary comes only where nothing is acquired: after a write that a full Redis allows, the
-- others pass, too.
local held = redis.call('hexists', lock_hash, field) == 1
if held and (not is_shared or has_shared_count(shared_counts, field, memory_key)) then
  require_primary(lock_hash)
  renew(lock_hash, ttl_ms) -- a copy of this request
  if is_shared then
    extend(shared_counts, ttl_ms)
  end
  return 0
end
if not held and is_nested then
  require_primary(lock_hash)
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
local named = not held and named_writer(claim_key) -- fails for a key of another type
local began, rest_ms
if not held and not is_taken then
  began, rest_ms = waiting_readers(turns)
  if not began and named and named ~= client then
    rest_ms = redis.call('pttl', claim_key)
  end
end
if not held and (is_taken or rest_ms) then
  -- A reader that waits to write would wait for itself.
  if mode == 'read' and reader_ttl(prefix, owner, redis.call('hget', lock_hash, owner)) > 0 then
    require_primary(lock_hash)
    return 'again'
  end
  if mark then
    mark_poll(mark, mark_ttl_ms)
  end
  if waits then
    note_writer(turns, client)
  end
  require_primary(lock_hash)
  rest_ms = rest_ms or redis.call('pttl', lock_hash)
  if is_taken and mode ~= 'read' then
    return {rest_ms, writer_of(lock_hash, entries) or ''}
  end
  if claim_ttl_ms == '0' or named then
    return {rest_ms, ''}
  end
  redis.call('set', claim_key, memory_key, 'px', claim_ttl_ms)
  return {rest_ms, '', 1}
end
if held and refuse_second then
  require_primary(lock_hash)
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
if held then
  redis.call('hincrby', lock_hash, field, 1)
  extend(lock_hash, ttl_ms)
else
  redis.call('hset', lock_hash, 'mode', 'write', field, 1)
  redis.call('pexpire', lock_hash, ttl_ms)
end
redis.call('del', claim_key)
if waits then -- not before: after a write that a full Redis allows, the others pass, too
  forget_writer(turns, client)
end
return 0
