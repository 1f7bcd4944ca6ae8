-- lib/shared_counts: which acquisitions with WithOwner have the counts of a lock's field.
--
-- WithOwner lets several acquisitions share one owner id. A private hold or a thread of Redisson
-- may have the same id. The lock hash counts all of them together, and each release must return
-- only its own count, so the hash of shared counts has the same field names as the lock hash. A
-- field lists the acquisitions with WithOwner that have a count. All other counts are private, or
-- Redisson's.
--
-- The name of an acquisition's memory key identifies it, because no other acquisition has that key.
-- The list has 16 digits of the name's SHA-1, and a space. The scripts read and write the whole
-- list: for 5000 counts of one owner these are 85 kB.
--
-- A list means nothing once the lock's field is gone. Therefore the first acquisition of a field
-- replaces the list, and the hash lives only as long as the leases of its acquisitions: a thread of
-- Redisson may come later with the same id.
--
-- If the key of shared counts has another type, there are no shared counts. That stops acquisitions
-- that share an id, but no release.
-- uses     lib/extend
-- defines  shared_count(shared_counts, field, held),
--          has_shared_count(shared_counts, field, memory_key),
--          are_own_counts(shared_counts, field, held, counts, memory_key),
--          add_shared_count(shared_counts, field, memory_key, is_first, ttl_ms),
--          remove_shared_count(shared_counts, field, memory_key),
--          forget_shared_count(shared_counts, field),
--          keep_shared_counts(shared_counts, lock_hash, field)

local function identity_of(memory_key)
  return string.sub(redis.sha1hex(memory_key), 1, 16) .. ' '
end

local identity_size = 17

-- read_identities returns the list of a field, and the error if the key has another type.
local function read_identities(shared_counts, field)
  local value = redis.pcall('hget', shared_counts, field)
  if type(value) == 'table' then
    return '', value
  end
  return value or ''
end

-- shared_count returns the shared counts of a field, never more than the counts held. The second
-- value is an error if the key has another type.
local function shared_count(shared_counts, field, held)
  local identities, fault = read_identities(shared_counts, field)
  return math.min(math.floor(#identities / identity_size), held), fault
end

-- has_shared_count returns whether an acquisition has a count of a field that is held.
local function has_shared_count(shared_counts, field, memory_key)
  local identities = read_identities(shared_counts, field)
  return string.find(identities, identity_of(memory_key), 1, true) ~= nil
end

-- are_own_counts returns whether the counts held of a field all belong to one acquisition. That is
-- the one with the memory key, or without it a private one. counts is how many it has, nil if that
-- is not known: then a private acquisition has any number, and a shared one has one.
local function are_own_counts(shared_counts, field, held, counts, memory_key)
  local identities = read_identities(shared_counts, field)
  if memory_key then
    return held == (counts or '1') and identities == identity_of(memory_key)
  end
  return held == (counts or held) and identities == ''
end

-- add_shared_count adds the count of an acquisition that has none. Call it before the lock changes:
-- it fails for a key of another type.
local function add_shared_count(shared_counts, field, memory_key, is_first, ttl_ms)
  local others = not is_first and redis.call('hget', shared_counts, field) or ''
  redis.call('hset', shared_counts, field, others .. identity_of(memory_key))
  extend(shared_counts, ttl_ms)
end

-- remove_shared_count removes the count of an acquisition that has one. Without a memory key it
-- removes the oldest count, if there is one. On a full Redis the caller's first write lets it pass.
local function remove_shared_count(shared_counts, field, memory_key)
  local identities = read_identities(shared_counts, field)
  local at = memory_key and string.find(identities, identity_of(memory_key), 1, true) or 1
  local others = string.sub(identities, 1, at - 1) .. string.sub(identities, at + identity_size)
  if others == '' then
    redis.pcall('hdel', shared_counts, field)
  else
    redis.call('hset', shared_counts, field, others)
  end
end

-- forget_shared_count removes all counts of a field that is gone.
local function forget_shared_count(shared_counts, field)
  redis.pcall('hdel', shared_counts, field)
end

-- keep_shared_counts removes the private counts of a field that has shared counts, too. It returns
-- nil if it has none, else whether there were private counts.
local function keep_shared_counts(shared_counts, lock_hash, field)
  if redis.pcall('hexists', shared_counts, field) ~= 1 then
    return nil
  end
  local count = tonumber(redis.call('hget', lock_hash, field) or 0) or 0
  local shared = shared_count(shared_counts, field, count)
  if shared == 0 then
    return nil
  end
  local ttl_ms = redis.call('pttl', lock_hash)
  redis.call('persist', lock_hash)
  redis.call('hset', lock_hash, field, shared)
  if ttl_ms >= 0 then -- last, because it deletes a hash in its last millisecond
    redis.call('pexpire', lock_hash, math.max(ttl_ms, 1))
  end
  return count > shared
end
