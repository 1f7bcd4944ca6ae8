-- rwlock/write_release: release a writer's counts and its claim, or hand the lock off.
-- The successor waits to write and gets the lock at once. The owner's read holds stay. Without a
-- memory a copy of this script changes nothing: see rwlock/read_release.
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: of releases
-- KEYS[3]  memory_key: of this request: 2 released, 3 nothing to release
-- KEYS[4]  claim_key: of a waiting writer; its value is the memory key of the writer's request, or
--          see rwlock/turns
-- KEYS[5]  shared_counts
-- KEYS[6]  turns: of clients that wait, see rwlock/turns
-- KEYS[7]  successor_memory (optional): memory of the successor's request, if there is a successor;
--          without one, the mark of clients that poll, if the client asks for it
-- ARGV[1]  owner (text): id
-- ARGV[2]  publish (command)
-- ARGV[3]  memory_ttl_ms (ms): 0 for a private id when no copy of its acquisition can come
-- ARGV[4]  is_shared (flag): release one count; else all that are not shared
-- ARGV[5]  only_own (flag): with is_shared: release the count of this acquisition; else any count,
--          a shared one if there is one
-- ARGV[6]  default_ttl_ms (ms): if the hash has none
-- ARGV[7]  client (text): whose note and turn end; "": none
-- ARGV[8]  successor (text, optional): its owner id, which belongs to one acquisition alone;
--          missing: no successor
-- ARGV[9]  successor_ttl_ms (ms, optional)
-- returns  released: 0 when it was not held; {0} when the successor has the lock now; else 1 and
--          how many received the release message, as {that number, "polled"} if clients poll
local lock_hash, channel, memory_key, claim_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local shared_counts, turns, successor_memory, all_keys = KEYS[5], KEYS[6], KEYS[7], KEYS
local owner, publish, memory_ttl_ms = ARGV[1], ARGV[2], ARGV[3]
local is_shared, only_own, default_ttl_ms = ARGV[4] == '1', ARGV[5] == '1', ARGV[6]
local client, successor, successor_ttl_ms = ARGV[7], ARGV[8], ARGV[9]

local field, successor_field = owner .. ':write', successor and successor .. ':write'
local remembers = memory_ttl_ms ~= '0'

-- The usual case needs no function of the libraries below: a writer that does not read, the only
-- one with this id, hands the lock off, or frees it while no other client waits.
local is_usual = not remembers and not is_shared
if is_usual and (successor and redis.call('exists', shared_counts, successor_memory)
    or redis.call('exists', shared_counts, turns)) == 0
  and redis.call('hlen', lock_hash) == 2 and redis.call('hexists', lock_hash, field) == 1
  and (not successor or redis.call('pttl', lock_hash) <= tonumber(successor_ttl_ms)) then
  if successor then
    redis.call('pexpire', lock_hash, successor_ttl_ms)
    redis.call('hset', lock_hash, successor_field, 1)
    redis.call('hdel', lock_hash, field)
    redis.call('del', claim_key)
    return {0}
  end
  redis.call('del', lock_hash)
  local told = 1 + redis.call(publish, channel, '1')
  local is_polled = all_keys[7] and redis.call('exists', all_keys[7]) == 1
  return is_polled and {told, 'polled'} or told
end

-- uses     lib/acl, lib/extend, lib/primary, lib/set_count, lib/shared_counts
-- uses     rwlock/fit_ttl, rwlock/foreign, rwlock/hold_keys, rwlock/readers, rwlock/turns

local prefix = hold_prefix(lock_hash)
local memory = remembers and redis.call('get', memory_key)
if memory == '3' then
  return 0
elseif memory == '2' then
  if successor_field and redis.call('hexists', lock_hash, successor_field) == 1 then
    -- A copy of this request. The successor counts its lease from when the answered copy was sent.
    extend(lock_hash, successor_ttl_ms)
    return {0}
  end
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

local count = tonumber(redis.call('hget', lock_hash, field) or 0) or 0
local claim = redis.pcall('get', claim_key)
local claimed = claim == memory_key
if client ~= '' then
  forget_writer(turns, client)
  claimed = claimed or claim == 'turn ' .. client
end
if claimed then
  redis.call('del', claim_key)
end
local shared = shared_count(shared_counts, field, count)
local has_count = not (is_shared and only_own)
  or has_shared_count(shared_counts, field, memory_key)
local to_release = is_shared and math.min(count, 1) or count - shared
if to_release == 0 or not has_count then
  require_primary(lock_hash)
  if count == 0 then
    forget_shared_count(shared_counts, field)
  end
  remember('3')
  if claimed then -- wake up the readers that waited behind this writer
    redis.call(publish, channel, '1')
  end
  return 0
end
-- In all branches the first write is one that a full Redis allows.
local answer = 1
-- Two fields are the mode and the writer. A third one is a read hold of the owner, which must stay.
if successor_field and to_release == count and redis.call('exists', successor_memory) == 0
  and redis.call('hlen', lock_hash) == 2 then
  local ttl_ms = redis.call('pttl', lock_hash)
  redis.call('pexpire', lock_hash, successor_ttl_ms)
  redis.call('hset', lock_hash, successor_field, 1)
  redis.call('hdel', lock_hash, field)
  redis.call('del', claim_key)
  if ttl_ms > tonumber(successor_ttl_ms) then -- as in rwlock/read_release, for a shorter TTL
    redis.call(publish, channel, '1')
    redis.call(publish, channel, '0')
  end
  answer = {0}
elseif to_release < count then
  local ttl_ms = redis.call('pttl', lock_hash)
  set_count(lock_hash, field, count - to_release, ttl_ms < 0 and default_ttl_ms or ttl_ms)
  if is_shared then
    remove_shared_count(shared_counts, field, only_own and memory_key)
  end
else
  redis.call('hdel', lock_hash, field)
  if is_shared then
    forget_shared_count(shared_counts, field)
  end
  local for_readers = begin_turn(turns)
  if redis.call('hlen', lock_hash) > 1 then
    redis.call('hset', lock_hash, 'mode', 'read')
    fit_ttl(lock_hash, prefix, math.huge)
  else -- only the mode is left
    redis.call('del', lock_hash)
    if not for_readers then
      name_writer(turns, claim_key)
    end
  end
  answer = 1 + redis.call(publish, channel, '1')
  if not successor and all_keys[7] and redis.call('exists', all_keys[7]) == 1 then
    answer = {answer, 'polled'}
  end
end
remember('2')
return answer
