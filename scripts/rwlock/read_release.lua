-- rwlock/read_release: release a reader's counts; the last reader frees the lock.
--
-- A private id that holds nothing will never hold again, unless a copy of its acquisition is still
-- under way. Therefore without a memory a copy of this script changes nothing, and its answer is
-- that nothing was held. The client knows whether it has sent a copy.
-- uses     rwlock/hold_keys
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: of releases
-- KEYS[3]  memory_key: of this request: 2 released, 3 nothing to release
-- KEYS[4]  claim_key: of a waiting writer
-- KEYS[5]  shared_counts
-- KEYS[6]  turns: of clients that wait, see rwlock/turns
-- ARGV[1]  owner (text): id
-- ARGV[2]  publish (command)
-- ARGV[3]  memory_ttl_ms (ms): 0 for a private id when no copy of its acquisition can come
-- ARGV[4]  is_shared (flag): release one count; else all that are not shared
-- ARGV[5]  only_own (flag): with is_shared: release the count of this acquisition; else any count,
--          a shared one if there is one
-- ARGV[6]  client (text): whose note is removed; "": none
-- returns  released: 1 when it was held, 0 when not
local lock_hash, channel, memory_key, claim_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local shared_counts, turns = KEYS[5], KEYS[6]
local owner, publish, memory_ttl_ms = ARGV[1], ARGV[2], ARGV[3]
local is_shared, only_own = ARGV[4] == '1', ARGV[5] == '1'
local client = ARGV[6]

local prefix = hold_prefix(lock_hash)
local remembers = memory_ttl_ms ~= '0'
local is_usual = not remembers and redis.call('exists', shared_counts) == 0
local count, mode = unpack(redis.call('hmget', lock_hash, owner, 'mode'))
-- The usual cases need no function of the libraries below.
local fields = is_usual and count == '1' and mode == 'read' and redis.call('hlen', lock_hash) or 0
local own_key = hold_key(prefix, owner, 1)
if fields == 2 and redis.call('exists', turns) == 0 then -- it reads alone, and nobody waits
  local was_alive = redis.call('del', own_key)
  redis.call('del', lock_hash)
  redis.call(publish, channel, '0')
  return was_alive
end
-- Of many readers, another one lasts as long as the hash: see fit_ttl in rwlock/fit_ttl.
if fields > 6 then
  local longest = redis.call('pttl', lock_hash) - 100
  local is_covered = longest > 0 and redis.call('pttl', own_key) < longest
  local others = {}
  if longest > 0 and not is_covered then
    -- If the user may not run this command, the search does without it.
    others = redis.pcall('hrandfield', lock_hash, 2)
  end
  for _, id in ipairs(others) do
    is_covered = is_covered
      or id ~= owner and redis.call('pttl', hold_key(prefix, id, 1)) >= longest
  end
  if is_covered then
    local was_alive = redis.call('del', own_key)
    redis.call('hdel', lock_hash, owner)
    if client ~= '' then
      redis.pcall('zrem', turns, 'r' .. client) -- forget_reader in rwlock/turns
    end
    return was_alive
  end
end

-- uses     lib/primary, rwlock/fit_ttl, rwlock/readers, rwlock/turns

-- left_by fits the TTL of the hash, after a reader with left ms has left. The last one frees the
-- lock, for a writer if no readers are still to come in their turn. If the others leave by their
-- TTL before the waiters poll, the waiters must know.
local function left_by(left)
  if mode == 'write' then
    return
  end
  local is_free = not fit_ttl(lock_hash, prefix, left)
  if is_free and not waiting_readers(turns) then
    name_writer(turns, claim_key)
  end
  if is_free or redis.call('pttl', lock_hash) < 1000 then
    redis.call(publish, channel, '0')
  end
end

require_primary(lock_hash)
if client ~= '' then
  forget_reader(turns, client)
end
if is_usual and not count then
  return 0
end
if is_usual then
  local left = reader_ttl(prefix, owner, count)
  remove_reader(lock_hash, prefix, owner, count)
  left_by(left)
  return left > 0 and 1 or 0
end

-- uses     lib/acl, lib/shared_counts, rwlock/foreign

local memory = remembers and redis.call('get', memory_key)
if memory == '3' then
  return 0
elseif memory == '2' then
  return 1
end
-- A private id is in no hash of another program. Its acquisition has found what the user may do.
local refusal = is_shared and not only_own
  and (no_rwlock(lock_hash) or publish_denied(publish, channel))
if refusal then
  return refusal
end

-- remember keeps the answer, so that a copy of this request or of the acquisition changes nothing.
local function remember(answer)
  if remembers then
    redis.call('del', memory_key) -- a full Redis allows what follows
    redis.call('set', memory_key, answer, 'px', memory_ttl_ms)
  end
end

count = tonumber(count or 0) or 0
local shared = shared_count(shared_counts, owner, count)
local has_count = not (is_shared and only_own)
  or has_shared_count(shared_counts, owner, memory_key)
local to_release = is_shared and math.min(count, 1) or count - shared
if to_release == 0 or not has_count then
  if count == 0 then
    forget_shared_count(shared_counts, owner)
  end
  remember('3')
  return 0
end
local left = reader_ttl(prefix, owner, count)
-- In all branches the first write is one that a full Redis allows.
if left > 0 and to_release < count then
  lower_count(lock_hash, prefix, owner, count, count - to_release, left)
  if is_shared then
    remove_shared_count(shared_counts, owner, only_own and memory_key)
  end
else
  remove_reader(lock_hash, prefix, owner, count)
  if is_shared then
    forget_shared_count(shared_counts, owner)
  end
  left_by(left) -- a writer that also reads still holds the lock
end
remember(left > 0 and '2' or '3')
return left > 0 and 1 or 0
