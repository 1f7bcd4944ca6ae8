-- rwlock/turns: clients that wait for the lock come in turn, near and far ones.
--
-- All of them hear each release, and whoever tries first gets a free lock. Without turns that would
-- always be the nearest client. Therefore a sorted set notes the clients that wait to read or to
-- write, and since when:
--
--   - A writer's release begins a turn of the readers that were noted before it. A writer may claim
--     the lock meanwhile, so that later readers wait, but the claim does not keep these ones out.
--   - When they have come and gone, or if there are none, the first writer has its turn, if it has
--     waited for long enough: the claim then names its client.
--
-- A client that does not come delays the others by turn_ms. The notes of all others that may have
-- died like it then go, too: live clients are noted again when they are refused. The set is a help,
-- not the truth: if it is lost or cannot be written, clients compete as without turns.
--
-- The score of a reader is the time at which it was noted, ms. Writers have that time less apart,
-- so they come before all readers. The writer whose turn has begun has it less 2 * apart, until it
-- acquires or is refused. The member "turn" has the time at which the latest turn of readers began,
-- plus apart.
-- uses     lib/clock
-- defines  note_reader(turns, client), note_writer(turns, client);
--          forget_reader(turns, client), forget_writer(turns, client);
--          waiting_readers(turns): when the readers' turn began, if some have not come yet, and how
--          long it lasts, ms; else nil;
--          is_turn_of(turns, client, began): whether it is the turn of that client's readers;
--          named_writer(claim_key): the client whose turn it is, nil if it is not a writer's;
--          name_writer(turns, claim_key): begin a writer's turn, if one waits;
--          begin_turn(turns): begin the readers' turn, after a writer's release; false if none wait

local turn_ms = 85 -- a client with a round trip of 80 ms is in time
local patience_ms = 20 -- before, writers compete: that costs less than to wait for a certain one
local apart = 1e14

local function note(turns, member, shift)
  local score = now_ms() + shift
  local added = redis.pcall('zadd', turns, 'nx', score, member)
  if type(added) ~= 'number' then
    return -- a full Redis, or a key of another type
  end
  local noted = added == 0 and tonumber(redis.call('zscore', turns, member)) or score
  if noted > score or noted < -1.5 * apart then
    redis.call('zadd', turns, score, member) -- the clock was set back, or its turn is over
  end
  redis.call('pexpire', turns, 3000)
end

local function note_reader(turns, client)
  note(turns, 'r' .. client, 0)
end

local function note_writer(turns, client)
  note(turns, 'w' .. client, -apart)
end

local function forget_reader(turns, client)
  redis.pcall('zrem', turns, 'r' .. client)
end

local function forget_writer(turns, client)
  redis.pcall('zrem', turns, 'w' .. client)
end

-- turn_began returns when the latest turn of readers began, nil if that is not known.
local function turn_began(turns)
  local score = tonumber(redis.pcall('zscore', turns, 'turn'))
  return score and score - apart
end

local function waiting_readers(turns)
  local began, now = turn_began(turns), now_ms()
  if began and began <= now and now < began + turn_ms
    and redis.call('zcount', turns, 0, began) > 0 then
    return began, began + turn_ms - now
  end
end

local function is_turn_of(turns, client, began)
  local noted = tonumber(redis.pcall('zscore', turns, 'r' .. client))
  return noted ~= nil and noted <= began
end

local function named_writer(claim_key)
  return string.match(redis.call('get', claim_key) or '', '^turn (.+)$')
end

local function name_writer(turns, claim_key)
  local longest = now_ms() - patience_ms - apart
  local member = redis.pcall('zrangebyscore', turns, '-inf', longest, 'limit', 0, 1)[1]
  if not member or type(redis.pcall('get', claim_key)) == 'table' then
    return
  end
  if tonumber(redis.call('zscore', turns, member)) < -1.5 * apart then -- it has not come
    redis.pcall('zremrangebyscore', turns, '-inf', longest)
    return
  end
  redis.pcall('zadd', turns, now_ms() - 2 * apart, member)
  redis.pcall('set', claim_key, 'turn ' .. string.sub(member, 2), 'px', turn_ms)
end

local function begin_turn(turns)
  local now, last = now_ms(), turn_began(turns)
  if last and last <= now then -- they have not come in their last turn
    redis.pcall('zremrangebyscore', turns, 0, last)
  end
  local waiting = redis.pcall('zcount', turns, 0, now)
  return type(waiting) == 'number' and waiting > 0
    and type(redis.pcall('zadd', turns, now + apart, 'turn')) == 'number'
end
