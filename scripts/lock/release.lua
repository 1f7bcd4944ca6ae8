-- lock/release: release the lock of an owner id that is not shared, or hand it off.
-- The successor waits for the lock and gets it at once. Counts of acquisitions with WithOwner stay.
--
-- An owner id that holds nothing will never hold again, unless a copy of its acquisition is still
-- under way, so a copy of this script changes nothing, and its answer is that nothing was held. The
-- client knows whether it has sent a copy.
-- KEYS[1]  lock_hash
-- KEYS[2]  channel
-- KEYS[3]  memory_key (optional): of this release, for late copies of the acquisition
-- KEYS[4]  shared_counts
-- KEYS[5]  line: of waiting clients
-- KEYS[6]  successor_memory (optional): memory of the successor's release, if there is a successor;
--          without one, the mark of clients that poll, if the client asks for it
-- KEYS[7]  successor_token (optional): fencing token, for a fenced lock with a successor only
-- ARGV[1]  owner (text): id
-- ARGV[2]  publish (command)
-- ARGV[3]  memory_ttl_ms (ms): 0 when no copy of the acquisition can come; KEYS[3] is not used then
-- ARGV[4]  place (text): the client's, in line, if it goes to the end of the line now, or if the
--          successor is the client's last waiter; else ""
-- ARGV[5]  successor (text, optional): its owner id, which belongs to one acquisition alone;
--          missing: no successor
-- ARGV[6]  successor_ttl_ms (ms, optional)
-- ARGV[7]  tokens (number, optional): how many to reserve for the successor, for a fenced lock only
-- returns  released:
--          0 when it was not held;
--          {0} when the successor has the lock now, for a fenced lock {the last token that was
--            reserved, as text};
--          else 1 and how many clients received a message, as {that number, "polled"} if clients
--            poll
local lock_hash, channel, memory_key = KEYS[1], KEYS[2], KEYS[3]
local shared_counts, line = KEYS[4], KEYS[5]
local successor_memory, successor_token, all_keys = KEYS[6], KEYS[7], KEYS
local owner, publish, memory_ttl_ms = ARGV[1], ARGV[2], ARGV[3]
local place = ARGV[4] ~= '' and ARGV[4] or nil
local successor, successor_ttl_ms, tokens = ARGV[5], ARGV[6], ARGV[7]
local mark = not successor and KEYS[6]

-- The usual cases need no function of the libraries below: there is a successor that is not its
-- client's last waiter, or nobody waits.
local is_usual = memory_ttl_ms == '0'
if is_usual and successor and not successor_token and not place
  and redis.call('exists', shared_counts, successor_memory) == 0
  and redis.call('hexists', lock_hash, owner) == 1
  and redis.call('pttl', lock_hash) <= tonumber(successor_ttl_ms) then
  redis.call('pexpire', lock_hash, successor_ttl_ms)
  redis.call('hset', lock_hash, successor, 1)
  redis.call('hdel', lock_hash, owner)
  return {0}
end
local is_plain = redis.call('exists', shared_counts, line) == 0
if is_plain and is_usual and not successor_memory then
  -- The owner is the only field: Redis deletes the hash with it.
  if redis.call('hdel', lock_hash, owner) == 0 then
    return 0
  end
  return 1 + redis.call(publish, channel, '0')
end

-- uses     lib/line, lib/notify_free

-- Other clients wait, and nobody has a shared count.
local has_no_shared = is_plain or redis.call('exists', shared_counts) == 0
if has_no_shared and is_usual and not successor then
  if redis.call('hdel', lock_hash, owner) == 0 then
    return 0
  end
  local is_polled = mark and redis.call('exists', mark) == 1
  local told = 1 + notify_free(all_keys, publish, place, is_plain)
  return is_polled and {told, 'polled'} or told
end

-- uses     lib/shared_counts, lib/token

-- remember_release makes late copies of the acquisition acquire nothing.
local function remember_release()
  if memory_ttl_ms ~= '0' then
    redis.call('del', memory_key) -- a full Redis allows what follows
    redis.call('set', memory_key, 1, 'px', memory_ttl_ms)
  end
end

-- In all branches, as in the ones above, the first write is one that a full Redis allows; the
-- others then pass, too.
local had_own
if not has_no_shared then
  had_own = keep_shared_counts(shared_counts, lock_hash, owner)
end
if had_own ~= nil then
  remember_release()
  return had_own and 1 or 0
end
-- A successor that has given up must not get the lock.
if successor and redis.call('exists', successor_memory) == 0
  and redis.call('hexists', lock_hash, owner) == 1 then
  local ttl_ms = redis.call('pttl', lock_hash)
  redis.call('pexpire', lock_hash, successor_ttl_ms)
  -- Without a token the lock is freed. The successor then tries, and learns why.
  local last = 0
  if successor_token then
    last = reserve_tokens(successor_token, tokens)
  end
  if last then
    redis.call('hset', lock_hash, successor, 1)
    redis.call('hdel', lock_hash, owner)
    remember_release()
    if place then
      give_up_place(line, place)
    end
    if ttl_ms > tonumber(successor_ttl_ms) then
      notify_rest(all_keys, publish)
    end
    return {last}
  end
end
if redis.call('hdel', lock_hash, owner) == 1 then
  remember_release()
  local is_polled = mark and redis.call('exists', mark) == 1
  local told = 1 + notify_free(all_keys, publish, place, is_plain)
  return is_polled and {told, 'polled'} or told
end
remember_release()
return 0
