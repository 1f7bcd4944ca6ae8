-- rwlock/read_acquire: acquire the lock for reading; if granted, also for companions.
-- Companions wait for the lock on the same client as the owner.
-- uses     lib/acl, lib/extend, rwlock/foreign, rwlock/hold_keys
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: of releases
-- KEYS[3]  memory_key: of this request; exists if a late copy must not acquire
-- KEYS[4]  claim_key: of a waiting writer
-- KEYS[5]  shared_counts
-- KEYS[6]  turns: of clients that wait, see rwlock/turns
-- KEYS[7..]  companions.memory_key: of each companion's request
-- KEYS[-1]  mark (optional): of clients that poll, if this one does
-- ARGV[1]  owner (text): id
-- ARGV[2]  ttl_ms (ms)
-- ARGV[3]  publish (command)
-- ARGV[4]  is_shared (flag): others may share the id; else it belongs to this acquisition alone
-- ARGV[5]  refuse_second (flag): refuse a second count
-- ARGV[6]  is_nested (flag): in a hold with the same id, which must still have the lock
-- ARGV[7]  client (text): an id that is new after each restart
-- ARGV[8]  waits (number): 1 if the client waits for messages; 2 if it was noted, and has no other
--          readers that wait
-- ARGV[9..]  companions.owner (text), companions.ttl_ms (ms): the owner is an id that belongs
--            to one acquisition alone
-- ARGV[-1]  mark_ttl_ms (ms, optional)
-- returns  acquired {companions (granted flag)...}:
--          0 when acquired, with companions {"in", and for each 1 when it acquired, or 0};
--          {pttl of the obstacle, writer} when refused;
--          "over" when this acquisition has ended;
--          "again" when a second count is refused;
--          "lost" when the outer hold is gone
local lock_hash, channel, memory_key, claim_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local shared_counts, turns, all_keys = KEYS[5], KEYS[6], KEYS
local owner, ttl_ms, publish = ARGV[1], ARGV[2], ARGV[3]
local is_shared, refuse_second, is_nested = ARGV[4] ~= '0', ARGV[5] == '1', ARGV[6] == '1'
local client, waits, all_args = ARGV[7], ARGV[8], ARGV
local companions, mark, mark_ttl_ms = #all_keys - 6, nil, nil
if #all_args % 2 == 1 then
  companions, mark, mark_ttl_ms = companions - 1, all_keys[#all_keys], all_args[#all_args]
end

local prefix = hold_prefix(lock_hash)
local is_single = companions == 0 and not is_shared and not is_nested and waits ~= '2'
local is_free = is_single and redis.call('exists', lock_hash, memory_key, claim_key) == 0
local is_clear = is_free or redis.call('exists', memory_key, claim_key) == 0
if not is_clear and redis.call('get', memory_key) then
  return 'over'
end
local count, mode
if not is_free then
  count, mode = unpack(redis.call('hmget', lock_hash, owner, 'mode'))
end
-- The usual cases need no function of the libraries below: the lock is free, or has other readers.
if is_free or is_single and is_clear and mode == 'read' and not count then
  local denied = not is_free and foreign_to_mode(lock_hash, mode)
    or publish_denied(publish, channel) or hold_keys_denied(prefix, owner)
  if denied then
    return denied
  end
  redis.call('set', hold_key(prefix, owner, 1), '1', 'px', ttl_ms)
  redis.call('hset', lock_hash, owner, 1, 'mode', 'read')
  if is_free then
    redis.call('pexpire', lock_hash, ttl_ms)
  else
    extend(lock_hash, ttl_ms)
  end
  return 0
end

-- uses     lib/count, lib/polls, lib/primary, lib/shared_counts, rwlock/readers, rwlock/turns

local alive = reader_ttl(prefix, owner, count) > 0

-- add_hold makes a reader's n-th hold.
local function add_hold(reader, n, lease_ms)
  redis.call('set', hold_key(prefix, reader, n), '1', 'px', lease_ms)
  redis.call('hset', lock_hash, reader, n, 'mode', mode or 'read')
  if mode or alive then
    extend(lock_hash, lease_ms)
  else
    redis.call('pexpire', lock_hash, lease_ms) -- it is new
  end
end

-- extend_hold makes sure that a reader's n-th hold lasts for the whole lease. It may have ended
-- before another hold of the reader.
local function extend_hold(reader, n, lease_ms)
  local key = hold_key(prefix, reader, n)
  if redis.call('pttl', key) < tonumber(lease_ms) then
    redis.call('set', key, '1', 'px', lease_ms)
  end
  extend(lock_hash, lease_ms)
end

-- granted acquires the lock for the companions too, if their owner acquired it just now, and
-- returns the script's answer. For a copy of this request it only looks which companions are
-- readers. A companion whose request has ended gets nothing, even if others with its id are
-- readers.
local function granted(is_copy)
  if waits == '2' then
    forget_reader(turns, client)
  end
  if companions == 0 then
    return 0
  end
  local memories, ids = {}, {}
  for i = 1, companions do
    memories[i], ids[i] = all_keys[6 + i], all_args[7 + 2 * i]
  end
  local some_ended = redis.call('exists', unpack(memories)) > 0
  local counts = redis.call('hmget', lock_hash, unpack(ids))
  local answer, added, longest = {'in'}, {}, 0
  for i, companion in ipairs(ids) do
    local lease_ms, is_reader = all_args[8 + 2 * i], false
    if not some_ended or redis.call('exists', memories[i]) == 0 then
      is_reader = reader_ttl(prefix, companion, counts[i]) > 0
      if is_reader then
        extend_hold(companion, counts[i], lease_ms)
      elseif not is_copy then
        redis.call('set', hold_key(prefix, companion, 1), '1', 'px', lease_ms)
        added[#added + 1], added[#added + 2] = companion, 1
        longest = math.max(longest, tonumber(lease_ms))
        is_reader = true
      end
    end
    answer[i + 1] = is_reader and 1 or 0
  end
  if longest > 0 then
    redis.call('hset', lock_hash, unpack(added))
    extend(lock_hash, longest)
  end
  return answer
end

-- require_primary comes only where nothing is acquired: after a write that a full Redis allows, the
-- others pass, too.
if alive and (not is_shared or has_shared_count(shared_counts, owner, memory_key)) then
  require_primary(lock_hash)
  extend_hold(owner, count, ttl_ms) -- a copy of this request
  renew(lock_hash, ttl_ms)
  if is_shared then
    extend(shared_counts, ttl_ms)
  end
  return granted(true)
end
local is_taken = alive or mode or redis.call('exists', lock_hash) == 1
local foreign_data, entries
if is_taken and not (alive and read_count(count)) then
  foreign_data, entries = foreign_to_mode(lock_hash, mode)
end
if foreign_data then
  return foreign_data
end
local holds = alive
  or (mode == 'write' and redis.call('hexists', lock_hash, owner .. ':write') == 1)
if not holds then
  if is_nested then
    require_primary(lock_hash)
    return 'lost'
  end
  -- New readers wait behind a waiting writer, so that readers cannot starve it.
  local claim_ttl = is_clear and 0 or redis.call('pttl', claim_key)
  local began = claim_ttl > 0 and waiting_readers(turns)
  local is_written = mode ~= 'read' and is_taken
  if is_written or claim_ttl > 0 and not (began and is_turn_of(turns, client, began)) then
    if waits ~= '0' then
      note_reader(turns, client)
    end
    require_primary(lock_hash)
    if not is_written then
      return {claim_ttl, ''}
    end
    if mark then
      mark_poll(mark, mark_ttl_ms)
    end
    return {redis.call('pttl', lock_hash), writer_of(lock_hash, entries) or ''}
  end
elseif refuse_second then
  require_primary(lock_hash)
  return 'again'
end
local denied = publish_denied(publish, channel) or hold_keys_denied(prefix, owner)
if denied then
  return denied
end
if is_shared then
  add_shared_count(shared_counts, owner, memory_key, not alive, ttl_ms)
end
add_hold(owner, alive and count + 1 or 1, ttl_ms)
return granted(false)
